package e2e_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
)

// TestBrokersKilled kills a NATS server and a Kafka broker for 5 s in the middle of a load: nothing is lost, each sink
// is back soon after its server, and JetStream stores nothing twice.
func TestBrokersKilled(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "brokers")
	kinds := []load.Resource{load.ConfigMaps(), load.Deployments()}
	bus, broker := natstest.Start(t, nil), kafkatest.Start(t)
	broker.CreateTopic("killed", 3)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps, apps/v1/deployments], namespaces: {include: [%s]}}]
pipelines:
  - {name: jetstream, sink: jetstream, backlog: {maxBytes: 128Ki}}
  - {name: kafka, sink: kafka, backlog: {maxBytes: 128Ki}}
sinks:
  - {name: jetstream, nats: {urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", stream: {name: KILLED, create: true}, timeout: 5s}}
  - {name: kafka, kafka: {brokers: [%q], topic: killed, timeout: 5s}}
`, t.TempDir(), namespace, bus.URL(), broker.Addr()))
	e.WaitReady()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 60})
	delivered := func(name string) float64 {
		return e.Metrics().sum("kubeferry_records_delivered_total", "pipeline="+name)
	}
	for _, name := range []string{"jetstream", "kafka"} {
		eventually(t, 2*wide, name+" delivers", func() error {
			if n := delivered(name); n < 50 {
				return fmt.Errorf("%v records", n)
			}
			return nil
		})
	}
	bus.Stop()
	broker.Stop()
	fault := time.After(5 * time.Second)
	for _, name := range []string{"jetstream", "kafka"} {
		e.WaitSink(wide, name, false)
	}
	<-fault
	for _, server := range []struct {
		pipeline string
		restart  func()
	}{{"jetstream", bus.Restart}, {"kafka", broker.Restart}} {
		until := delivered(server.pipeline)
		server.restart()
		before, pulse, back := ownProcesses(t), startPulse(t, nil), time.Now()
		eventually(t, 2*wide, server.pipeline+" delivers again", func() error {
			if delivered(server.pipeline) == until {
				return fmt.Errorf("%+v", e.Status().Pipelines)
			}
			return nil
		})
		again := time.Now()
		took, stalled := again.Sub(back), pulse.Stalled(back, again)
		pulse.Stop()
		most := max(e.Slowed(recoveryWorst), ownProcesses(t).since(before).slowed(recoveryWorst)) // the server may have waited too
		t.Logf("%s: back after %v, with the machine stalled for %v", server.pipeline, took.Round(time.Millisecond), stalled)
		if took-stalled > most {
			t.Errorf("%s: the first record came %v after the server was back, want at most %v", server.pipeline, took, most)
		}
	}
	done := running.End()
	if err := watched.WaitCaughtUp(within(t, 2*wide), done.UIDs...); err != nil {
		t.Fatal(err)
	}
	received := float64(watched.Changes())
	eventually(t, 3*wide, "everything is delivered", func() error {
		for _, name := range []string{"jetstream", "kafka"} {
			if n := delivered(name); n < received {
				return fmt.Errorf("%s: %v of %v", name, n, received)
			}
		}
		return nil
	})
	stored := watched.Compare(streamReader(t, bus, "KILLED")(), oracle.CompareOptions{})
	t.Log("JetStream: ", stored)
	if !stored.OK() || len(stored.Duplicates) > 0 {
		t.Errorf("JetStream: %v", stored)
	}
	logged := watched.Compare(topicReader(t, broker, cloudEvents, "killed")(), oracle.CompareOptions{})
	t.Log("Kafka: ", logged)
	if !logged.OK() {
		t.Errorf("Kafka: %v", logged)
	}
}
