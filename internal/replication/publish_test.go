package replication_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/replication"
)

// answering holds the answer to an update back.
type answering struct {
	*leases
	behind func()
}

func (a *answering) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	answer, err := a.leases.Update(ctx, lease)
	a.behind()
	return answer, err
}

// TestPublishBesideARenewal has the first commit of a leader made while a renewal is under way that names the last leader's. Deliveries
// do not wait for the next renewal.
func TestPublishBesideARenewal(t *testing.T) {
	w := newWorld()
	former := w.candidate("former", state("l", 1, 7))
	former.taken(t)
	former.claim.Term = former.Status().Term
	if !former.try() {
		t.Fatal("no renewal")
	}
	if err := former.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	claim, server := former.claim, &answering{leases: &w.leases, behind: func() {}}
	leader := replication.NewLease(replication.LeaseOptions{
		Client: server, Name: "l", Namespace: "n", Identity: "leader", Cluster: "c", ClusterUID: "u", Duration: duration,
		Claim: func() replication.Claim { return claim }, Now: func() time.Time { return w.now },
	})
	if err := leader.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := leader.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	written, answer, renewed := make(chan struct{}), make(chan struct{}), make(chan error)
	server.behind = func() {
		server.behind = func() {}
		close(written)
		<-answer
	}
	go func() { renewed <- leader.Hold(context.WithoutCancel(t.Context())) }()
	<-written
	claim.Term, claim.Commit = leader.Status().Term, claim.Commit+1
	published := make(chan error)
	go func() {
		published <- leader.Publish(context.WithoutCancel(t.Context()), replication.Endpoint{Address: "a", Certificate: "c"})
	}()
	time.Sleep(20 * time.Millisecond) // it may be sent before the answer comes
	close(answer)
	if err := <-renewed; err != nil {
		t.Fatal(err)
	}
	if err := <-published; err != nil || leader.Left() <= 0 {
		t.Errorf("got %v, and deliveries may go on for %v", err, leader.Left())
	}
}

// TestHolder: people see in the Lease who holds it, since when, and how often that changed.
func TestHolder(t *testing.T) {
	w := newWorld()
	first, second := w.candidate("first", replication.Claim{}), w.candidate("second", replication.Claim{})
	first.taken(t)
	expect := func(holder string, seconds, transitions int32, acquired time.Time) {
		t.Helper()
		spec := w.lease.Spec
		if *spec.HolderIdentity != holder || *spec.LeaseDurationSeconds != seconds || *spec.LeaseTransitions != transitions ||
			!spec.AcquireTime.Equal(&metav1.MicroTime{Time: acquired}) || !spec.RenewTime.Equal(&metav1.MicroTime{Time: w.now}) {
			t.Errorf("at %v the Lease has %v", w.now, spec)
		}
	}
	acquired := w.now
	expect("first", 10, 0, acquired)
	w.now = w.now.Add(time.Second)
	if !first.try() {
		t.Fatal("no renewal")
	}
	expect("first", 10, 0, acquired)
	if err := first.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("", 1, 0, w.now)
	second.taken(t)
	expect("second", 10, 1, w.now)
}

// canceled gives up on an answer when its caller does, as HTTP does, and the update is applied all the same.
type canceled struct {
	*leases
	answer chan struct{}
}

func (c *canceled) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	answer, err := c.leases.Update(ctx, lease)
	select {
	case <-c.answer:
		return answer, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A renewal that its caller does not wait for any more may be applied all the same. The Lease can be renewed then, and given up.
func TestRenewalThatIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		server := &canceled{&w.leases, make(chan struct{})}
		close(server.answer)
		leader := replication.NewLease(replication.LeaseOptions{
			Client: server, Name: "l", Identity: "leader", Cluster: "c", Duration: duration, Now: func() time.Time { return w.now },
			Claim: func() replication.Claim { return replication.Claim{} },
		})
		c := &candidate{Lease: leader, world: w, name: "leader", lasts: duration}
		c.taken(t)
		publish := func() {
			t.Helper()
			answered := server.answer
			server.answer = make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			if begun, err := time.Now(), leader.Publish(ctx, replication.Endpoint{}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) != 2*time.Second {
				t.Fatalf("%v after %v", err, time.Since(begun))
			}
			server.answer = answered
		}
		publish()
		if !c.try() {
			t.Errorf("it cannot be renewed: %+v", leader.Status())
		}
		publish()
		if err := leader.Release(t.Context()); err != nil || *w.lease.Spec.HolderIdentity != "" {
			t.Errorf("given up: %v, %+v", err, w.lease.Spec)
		}
	})
}
