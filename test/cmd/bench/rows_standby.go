package main

import (
	"context"
	"fmt"
	"path/filepath"

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
