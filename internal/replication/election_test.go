package replication

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slowServer is an API server that holds one Lease and takes a while for each call. Its client gives up after 3.5 s.
type slowServer struct {
	read, write time.Duration // how long each call takes

	mu      sync.Mutex // guards what follows
	lease   *coordinationv1.Lease
	version int
	hang    int // so many of the next reads get no answer
}

func (s *slowServer) wait(ctx context.Context, takes time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, 3500*time.Millisecond)
	defer cancel()
	select {
	case <-time.After(takes):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *slowServer) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	takes := s.read
	if s.hang > 0 {
		s.hang--
		takes = time.Hour
	}
	s.mu.Unlock()
	if err := s.wait(ctx, takes); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.DeepCopy(), nil
}

func (s *slowServer) Create(context.Context, *coordinationv1.Lease, metav1.CreateOptions) (*coordinationv1.Lease, error) {
	return nil, errors.New("the Lease exists")
}

func (s *slowServer) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	if err := s.wait(ctx, s.write); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if lease.ResourceVersion != s.lease.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "l", errors.New("it has changed"))
	}
	s.put(lease)
	return s.lease.DeepCopy(), nil
}

func (s *slowServer) put(lease *coordinationv1.Lease) {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
}

// elected has a leader of the server's Lease die, and returns how long it takes until a standby leads.
func elected(t *testing.T, server *slowServer, beside func()) time.Duration {
	t.Helper()
	gone, seconds := "gone", int32(10)
	server.put(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &gone, LeaseDurationSeconds: &seconds}})
	timing := Timing{LeaseDuration: 10 * time.Second, RenewDeadline: 7 * time.Second, RetryPeriod: time.Second}
	lease := NewLease(LeaseOptions{
		Client: server, Name: "l", Identity: "standby", Duration: timing.LeaseDuration, Claim: func() Claim { return Claim{} },
	})
	election := NewElection(lease, timing, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = election.Run(ctx) })
	running.Go(beside)
	begun := time.Now()
	select {
	case <-election.Led():
	case <-time.After(5 * time.Minute):
		t.Errorf("it does not lead: %+v", lease.Status())
	}
	took := time.Since(begun)
	cancel()
	running.Wait()
	return took
}

// A dead connection, and two dials to an API server that is gone, do not begin the wait for the Lease anew.
func TestReadsWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		got := elected(t, server, func() {
			time.Sleep(5200 * time.Millisecond)
			server.mu.Lock()
			server.hang = 3
			server.mu.Unlock()
		})
		if got > 12*time.Second {
			t.Errorf("it leads after %v", got)
		}
	})
}

// A standby waits for answers for as long as a slow API server takes.
func TestSlowReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := elected(t, &slowServer{read: 1900 * time.Millisecond}, func() {}); got > 30*time.Second {
			t.Errorf("it leads after %v", got)
		}
	})
}
