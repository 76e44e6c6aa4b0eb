package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kubeferry/kubeferry/test/controlplane"
)

// replicas is how one of several replicas runs.
type replicas struct{ namespace, kubeconfig string }

func (r *replicas) configuration() string {
	return fmt.Sprintf("leaderElection: {leaseName: kubeferry, leaseNamespace: %s}\nreplication: {listen: \"127.0.0.1:0\"}\n", r.namespace)
}

// newReplicas makes the ServiceAccount by which the replicas of a namespace recognize each other.
func (l *lab) newReplicas(ctx context.Context, namespace string) (*replicas, error) {
	account, err := l.plane.ServiceAccountConfig(ctx, namespace, "kubeferry")
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(l.config)
	if err != nil {
		return nil, err
	}
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbac.Group, "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "kubeferry"}},
	}}
	binding.SetGroupVersionKind(rbac.WithKind("ClusterRoleBinding"))
	binding.SetName(namespace)
	if _, err := client.Resource(rbac.WithResource("clusterrolebindings")).Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("grant the replicas their rights: %w", err)
	}
	r := &replicas{namespace, filepath.Join(l.dir, namespace+".kubeconfig")}
	return r, controlplane.WriteKubeconfig(r.kubeconfig, account)
}

// withStandby starts a leader, and a standby beside it once it is ready. stop ends the standby.
type withStandby struct {
	l       *lab
	e       exporter
	standby *subject
	before  usage // of the standby once it is in sync
}

func (s *withStandby) start(ctx context.Context, e exporter, namespace string) (leader *subject, err error) {
	if e.replicas, err = s.l.newReplicas(ctx, namespace); err != nil {
		return nil, err
	}
	s.e = e
	return s.l.startExporter(e)
}

func (s *withStandby) ready(ctx context.Context, leader *subject) (err error) {
	if err := leader.waitReady(ctx); err != nil {
		return err
	}
	if s.standby, err = s.l.startExporter(s.e); err != nil {
		return err
	}
	if err := s.standby.waitReady(ctx); err != nil { // in sync
		return err
	}
	s.before, err = s.standby.usage()
	return err
}

func (s *withStandby) stop() {
	if s.standby != nil {
		s.standby.stop()
	}
}

// liveStandby runs a leader with one standby beside a load.
func (l *lab) liveStandby(ctx context.Context, operations int) (leader, standby sample, err error) {
	s := withStandby{l: l}
	defer s.stop()
	leader, err = l.follow(ctx, cloudEvents, operations, func(w writing) (*subject, error) {
		return s.start(ctx, w.exporter(), w.namespace)
	}, s.ready)
	if err != nil {
		return leader, standby, err
	}
	standby, err = s.standby.sample(ctx, tally{records: leader.Records}, s.before)
	return leader, standby, err
}

// standbyBacklog has a leader deliver what exists while a standby joins and copies all of it.
func standbyBacklog(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadEvents(ctx)
	if err != nil {
		return nil, err
	}
	var standbys []sample
	with := side{name: "leader", run: func(ctx context.Context) (sample, error) {
		l.runs++
		namespace := fmt.Sprintf("standby-%d", l.runs)
		if err := l.namespace(ctx, namespace); err != nil {
			return sample{}, err
		}
		s := withStandby{l: l}
		defer s.stop()
		leader, err := l.backlog(ctx, cloudEvents, n, func() (*subject, error) {
			leader, err := s.start(ctx, events(), namespace)
			if err != nil {
				return nil, err
			}
			for err = errors.New("none"); err != nil && ctx.Err() == nil; time.Sleep(time.Millisecond) {
				_, err = leader.logged(`"msg":"leading"`) // before the other one can
			}
			s.standby, err = l.startExporter(s.e)
			return leader, err
		})
		if err != nil {
			return leader, err
		}
		standby, err := s.standby.sample(ctx, tally{records: leader.Records}, usage{})
		standbys = append(standbys, standby)
		return leader, err
	}}
	of, err := l.paired(ctx, l.exporterSide("alone", n, events()), with)
	if err != nil {
		return nil, err
	}
	named, both := of.named("alone", "leader"), pair{of.b, standbys}
	return []check{
		named.against("CPU per object, µs", cpuEach, atMost(1.1, "≤ 1.1 × alone")),
		named.against("peak RSS, MiB", peak, nil),
		both.named("leader", "standby").against("CPU per object, µs", cpuEach, atMost(0.3, "≤ 0.3 × the leader")),
		both.named("leader", "standby").against("peak RSS, MiB", peak, atMost(1, "≤ the leader's")),
	}, nil
}

// standbyLatency compares how long changes take to the sink, alone and with a standby.
func standbyLatency(ctx context.Context, l *lab) ([]check, error) {
	var checks []check
	for _, rate := range []int{200, 500} {
		l.say("    at %d/s", rate)
		alone := func() (delays, float64, error) {
			return l.delays(ctx, cloudEvents, l.scaled(rate*10), rate, func(w writing) (*subject, error) { return l.startExporter(w.exporter()) }, exporterWatches)
		}
		with := func() (delays, float64, error) {
			s := withStandby{l: l}
			defer s.stop()
			return l.delays(ctx, cloudEvents, l.scaled(rate*10), rate, func(w writing) (*subject, error) {
				return s.start(ctx, w.exporter(), w.namespace)
			}, s.ready)
		}
		var p99 [2][]float64
		var longer []float64
		for n := range l.pairs {
			for turn := range 2 {
				which := (n + turn) % 2
				d, reached, err := []func() (delays, float64, error){alone, with}[which]()
				if err != nil {
					return nil, err
				}
				l.say("    %-10s p50 %5.1f ms, p99 %5.1f ms at %.0f/s", [2]string{"alone", "leader"}[which], millis(d.p50), millis(d.p99), reached)
				p99[which] = append(p99[which], millis(d.p99))
			}
			longer = append(longer, p99[1][n]-p99[0][n])
		}
		c := check{
			What: fmt.Sprintf("at %d/s, p99, ms", rate), Base: "alone " + number(median(p99[0])), Value: "leader " + number(median(p99[1])),
			Ratio: fmt.Sprintf("%+.1f", median(longer)),
		}
		c.Target, c.Outcome = atMost(2, "≤ alone + 2").judge(median(longer))
		checks = append(checks, c)
	}
	return checks, nil
}

func standbyLive(ctx context.Context, l *lab) ([]check, error) {
	n := l.scaled(liveWrites)
	var standbys []sample
	with := side{name: "leader", run: func(ctx context.Context) (sample, error) {
		leader, standby, err := l.liveStandby(ctx, n)
		standbys = append(standbys, standby)
		return leader, err
	}}
	of, err := l.paired(ctx, l.liveExporter("alone", n), with)
	if err != nil {
		return nil, err
	}
	both := pair{of.b, standbys}
	return []check{
		of.named("alone", "leader").against("CPU per change, µs", cpuEach, atMost(1.1, "≤ 1.1 × alone")),
		of.named("alone", "leader").against("peak RSS, MiB", peak, nil),
		both.named("leader", "standby").against("CPU per change, µs", cpuEach, atMost(0.3, "≤ 0.3 × the leader")),
		both.named("leader", "standby").against("peak RSS, MiB", peak, atMost(1, "≤ the leader's")),
	}, nil
}

func standbyMillion(ctx context.Context, l *lab) ([]check, error) {
	e, change, err := l.millionKnown(ctx, "standby")
	if err != nil {
		return nil, err
	}
	var copied, taken, leader, memory []float64
	for range l.pairs {
		l.runs++
		name := fmt.Sprintf("standby-%d", l.runs)
		if err := l.namespace(ctx, name); err != nil {
			return nil, err
		}
		if e.replicas, err = l.newReplicas(ctx, name); err != nil {
			return nil, err
		}
		toCopy, toTake, led, peak, err := l.takeOver(ctx, e, change)
		if err != nil {
			return nil, err
		}
		l.say("    copied in %.2f s, taken over in %.2f s, %.1f MiB peak", toCopy.Seconds(), toTake.Seconds(), mebi(peak))
		copied, taken = append(copied, toCopy.Seconds()), append(taken, toTake.Seconds())
		leader, memory = append(leader, mebi(led)), append(memory, mebi(peak))
	}
	return []check{
		alone("copied after, s", median(copied), atMost(20, "≤ 20 s")),
		alone("first record after the Lease is taken, s", median(taken), atMost(3, "≤ 3 s")),
		alone("peak RSS of the leader, MiB", median(leader), nil),
		alone("peak RSS of the standby, MiB", median(memory), atMost(median(leader), "≤ the leader's")),
	}, nil
}

// takeOver starts a leader and an empty standby, and kills the leader once the standby is in sync. It returns how long the copy took,
// how long it took from the standby's Lease to its first record, and the peak memory of both while one led.
func (l *lab) takeOver(ctx context.Context, e exporter, change func() error) (toCopy, toTake time.Duration, led, peak int64, err error) {
	leader, err := l.startExporter(e)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	defer leader.stop()
	if err := leader.waitReady(ctx); err != nil {
		return 0, 0, 0, 0, leader.explain(err)
	}
	e.stateDir = "" // one of its own
	standby, err := l.startExporter(e)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	defer standby.stop()
	if err := standby.waitReady(ctx); err != nil {
		return 0, 0, 0, 0, standby.explain(err)
	}
	toCopy = time.Since(standby.begun)
	of, err := leader.usage()
	if err != nil {
		return 0, 0, 0, 0, err
	}
	used, err := standby.usage()
	if err != nil {
		return 0, 0, 0, 0, err
	}
	leader.process.Kill()
	l.hook.expect(cloudEvents, false)
	if err := change(); err != nil {
		return 0, 0, 0, 0, err
	}
	got, err := l.hook.wait(ctx, 1, standby.process.Done())
	if err != nil {
		return 0, 0, 0, 0, standby.explain(err)
	}
	text, err := standby.logged(`"msg":"leading"`)
	if err != nil {
		return 0, 0, 0, 0, err
	}
	var line struct{ Time time.Time }
	if err := json.Unmarshal(text, &line); err != nil {
		return 0, 0, 0, 0, err
	}
	return toCopy, got.last.Sub(line.Time), of.Peak, used.Peak, nil
}
