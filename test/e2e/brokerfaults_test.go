package e2e_test

import (
	"fmt"
	"strings"
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

// TestExtendedBrokerHangs freezes one of three brokers, and the controller does not notice it. What the others lead goes on at nine tenths of its
// rate at least, and nothing is lost.
func TestExtendedBrokerHangs(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespaces := []string{newNamespace(t, "hangs-a"), newNamespace(t, "hangs-b"), newNamespace(t, "hangs-c")}
	broker := kafkatest.StartWith(t, kafkatest.Options{Brokers: 3, Properties: map[string]string{"broker.session.timeout.ms": "300000"}})
	broker.CreateTopicOnce("hangs", 12)
	kinds := []load.Resource{load.ConfigMaps()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: namespaces})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: kafka}]
sinks: [{name: kafka, kafka: {brokers: [%s], topic: hangs}}]
`, t.TempDir(), strings.Join(namespaces, ", "), strings.Join(broker.Addrs(), ", ")))
	e.WaitReady()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: namespaces, Objects: 600, Seed: 61})
	counts := func() (received, delivered float64) {
		m := e.Metrics()
		return m.sum("kubeferry_deltas_received_total", "pipeline=p"), m.sum("kubeferry_records_delivered_total", "pipeline=p")
	}
	eventually(t, 2*wide, "the load is delivered", func() error {
		if _, delivered := counts(); delivered < 1000 {
			return fmt.Errorf("%v records", delivered)
		}
		return nil
	})
	broker.Freeze(2)
	time.Sleep(25 * time.Second) // the first calls end with their time-out
	received, delivered := counts()
	time.Sleep(30 * time.Second) // to measure a rate
	receivedThen, deliveredThen := counts()
	share := (deliveredThen - delivered) / (receivedThen - received)
	t.Logf("%.0f of %.0f changes were delivered in 30 s", deliveredThen-delivered, receivedThen-received)
	if share < 0.9*2/3 {
		t.Errorf("%.0f %% of the changes were delivered, want nine tenths of two thirds", 100*share)
	}
	broker.Thaw(2)
	done := running.End()
	if err := watched.WaitCaughtUp(within(t, 2*wide), done.UIDs...); err != nil {
		t.Fatal(err)
	}
	e.WaitSettled(4 * wide)
	logged := watched.Compare(topicReader(t, broker, cloudEvents, "hangs")(), oracle.CompareOptions{})
	t.Log(logged)
	if !logged.OK() {
		t.Errorf("%v", logged)
	}
}
