package main

import (
	"context"
	"encoding/json"
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

// liveStandby runs a leader with one standby beside a load.
func (l *lab) liveStandby(ctx context.Context, operations int) (leader, standby sample, err error) {
	var second *subject
	var before usage
	defer func() {
		if second != nil {
			second.stop()
		}
	}()
	var e exporter
	leader, err = l.follow(ctx, cloudEvents, operations, func(w writing) (*subject, error) {
		e = w.exporter()
		var err error
		if e.replicas, err = l.newReplicas(ctx, w.namespace); err != nil {
			return nil, err
		}
		return l.startExporter(e)
	}, func(ctx context.Context, s *subject) (err error) {
		if err := s.waitReady(ctx); err != nil {
			return err
		}
		if second, err = l.startExporter(e); err != nil {
			return err
		}
		if err := second.waitReady(ctx); err != nil { // in sync
			return err
		}
		before, err = second.usage()
		return err
	})
	if err != nil {
		return leader, standby, err
	}
	standby, err = second.sample(ctx, tally{records: leader.Records}, before)
	return leader, standby, err
}

func standbyLive(ctx context.Context, l *lab) ([]check, error) {
	n := l.scaled(liveWrites)
	var standbys []sample
	with := side{name: "leader", run: func(ctx context.Context) (sample, error) {
		leader, standby, err := l.liveStandby(ctx, n)
		standbys = append(standbys, standby)
		return leader, err
	}}
	of, err := l.paired(ctx, l.liveExporter("alone", n, false), with)
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
	var copied, taken, memory []float64
	for range l.pairs {
		l.runs++
		name := fmt.Sprintf("standby-%d", l.runs)
		if err := l.namespace(ctx, name); err != nil {
			return nil, err
		}
		if e.replicas, err = l.newReplicas(ctx, name); err != nil {
			return nil, err
		}
		toCopy, toTake, peak, err := l.takeOver(ctx, e, change)
		if err != nil {
			return nil, err
		}
		l.say("    copied in %.2f s, taken over in %.2f s, %.1f MiB peak", toCopy.Seconds(), toTake.Seconds(), mebi(peak))
		copied, taken, memory = append(copied, toCopy.Seconds()), append(taken, toTake.Seconds()), append(memory, mebi(peak))
	}
	return []check{
		alone("copied after, s", median(copied), atMost(20, "≤ 20 s")),
		alone("first record after the Lease is taken, s", median(taken), atMost(3, "≤ 3 s")),
		alone("peak RSS of the standby, MiB", median(memory), nil),
	}, nil
}

// takeOver starts a leader and an empty standby, and kills the leader once the standby is in sync. It returns how long the copy took,
// and how long it took from the standby's Lease to its first record.
func (l *lab) takeOver(ctx context.Context, e exporter, change func() error) (toCopy, toTake time.Duration, peak int64, err error) {
	leader, err := l.startExporter(e)
	if err != nil {
		return 0, 0, 0, err
	}
	defer leader.stop()
	if err := leader.waitReady(ctx); err != nil {
		return 0, 0, 0, leader.explain(err)
	}
	e.stateDir = "" // one of its own
	standby, err := l.startExporter(e)
	if err != nil {
		return 0, 0, 0, err
	}
	defer standby.stop()
	if err := standby.waitReady(ctx); err != nil {
		return 0, 0, 0, standby.explain(err)
	}
	toCopy = time.Since(standby.begun)
	leader.process.Kill()
	l.hook.expect(cloudEvents, false)
	if err := change(); err != nil {
		return 0, 0, 0, err
	}
	got, err := l.hook.wait(ctx, 1, standby.process.Done())
	if err != nil {
		return 0, 0, 0, standby.explain(err)
	}
	line, err := standby.logged(`"msg":"leading"`)
	if err != nil {
		return 0, 0, 0, err
	}
	var led struct{ Time time.Time }
	if err := json.Unmarshal(line, &led); err != nil {
		return 0, 0, 0, err
	}
	used, err := standby.usage()
	return toCopy, got.last.Sub(led.Time), used.Peak, err
}
