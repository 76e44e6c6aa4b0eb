package replication_test

import (
	"context"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/kubeferry/kubeferry/internal/replication"
)

// answering holds the answer to an update back.
type answering struct {
	*leases
	behind func()
}

func (a *answering) Update(ctx context.Context, lease *coordinationv1.Lease, o metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	answer, err := a.leases.Update(ctx, lease, o)
	a.behind()
	return answer, err
}

// TestPublishBesideARenewal has the first commit of a leader made while a renewal is under way that names the last leader's. Deliveries
// do not wait for the next renewal.
func TestPublishBesideARenewal(t *testing.T) {
	w := newWorld()
	former := w.candidate("former", state("l", 0, 1, 7))
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
	now := metav1.NewTime(w.now)
	renewal := resourcelock.LeaderElectionRecord{HolderIdentity: "leader", LeaseDurationSeconds: 10, RenewTime: now, AcquireTime: now}
	if _, _, err := leader.Get(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := leader.Update(t.Context(), renewal); err != nil {
		t.Fatal(err)
	}
	written, answer, renewed := make(chan struct{}), make(chan struct{}), make(chan error)
	server.behind = func() {
		server.behind = func() {}
		close(written)
		<-answer
	}
	go func() { renewed <- leader.Update(context.WithoutCancel(t.Context()), renewal) }()
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
