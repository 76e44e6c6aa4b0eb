package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// slowServer is an API server that holds one Lease and takes a while for each call. Its client gives up after 3.5 s.
type slowServer struct {
	read, write time.Duration // how long each call takes

	mu      sync.Mutex // guards what follows
	lease   *coordinationv1.Lease
	version int
	hang    int // so many of the next reads get no answer
	reads   int
	hangs   int // so many of the next writes get no answer, and
	fails   int // so many an error; neither has an effect
	badRead int // the number of a read that gets an error
	behind  int // so many reads get no answer behind each write that gets none
	resets  int // so many of the next calls end with their connection

	log bytes.Buffer // of the standby
}

var errLeaderChanged = apierrors.NewInternalError(errors.New("etcdserver: leader changed"))

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

func (s *slowServer) Get(ctx context.Context, _ string) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	s.reads++
	takes, bad := s.read, s.reads == s.badRead
	if s.hang > 0 {
		s.hang--
		takes = time.Hour
	}
	reset := s.reset("Get")
	s.mu.Unlock()
	if reset != nil {
		return nil, reset
	}
	if err := s.wait(ctx, takes); err != nil {
		return nil, err
	}
	if bad {
		return nil, errLeaderChanged
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lease.DeepCopy(), nil
}

func (s *slowServer) Create(context.Context, *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return nil, errors.New("the Lease exists")
}

func (s *slowServer) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.mu.Lock()
	takes, fails := s.write, s.fails > 0
	switch {
	case fails:
		s.fails--
	case s.hangs > 0:
		s.hangs--
		takes, s.hang = time.Hour, s.behind
	}
	reset := s.reset("Put")
	s.mu.Unlock()
	if reset != nil {
		return nil, reset
	}
	if err := s.wait(ctx, takes); err != nil {
		return nil, err
	}
	if fails {
		return nil, errLeaderChanged
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if lease.ResourceVersion != s.lease.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "l", errors.New("it has changed"))
	}
	s.put(lease)
	return s.lease.DeepCopy(), nil
}

// reset returns the error of a call whose connection ends, if it does; mu is held.
func (s *slowServer) reset(verb string) error {
	if s.resets == 0 {
		return nil
	}
	s.resets--
	return fmt.Errorf("%s: read tcp 10.1.2.3:%d->10.0.0.1:443: connection reset by peer", verb, 50000+s.resets)
}

func (s *slowServer) put(lease *coordinationv1.Lease) {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
}

func (s *slowServer) readsSoFar() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// elected has a leader of the server's Lease die, and returns how long it takes until a standby leads.
func elected(t *testing.T, server *slowServer, beside func()) time.Duration {
	t.Helper()
	gone, seconds := "gone", int32(10)
	server.put(&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: &gone, LeaseDurationSeconds: &seconds}})
	return led(t, server, beside)
}

// led returns how long it takes until a standby leads.
func led(t *testing.T, server *slowServer, beside func()) time.Duration {
	t.Helper()
	began := time.Now()
	end := lead(t, server, beside)
	took := time.Since(began)
	end()
	return took
}

// lead waits until a standby leads, which it does until end is called.
func lead(t *testing.T, server *slowServer, beside func()) (end func()) {
	t.Helper()
	lease := NewLease(LeaseOptions{
		Client: server, Name: "l", Identity: "standby", Duration: 10 * time.Second, Claim: func() Claim { return Claim{} },
	})
	election := NewElection(lease, time.Second, slog.New(slog.NewTextHandler(&server.log, nil)))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = election.Run(ctx) })
	running.Go(beside)
	select {
	case <-election.Led():
	case <-time.After(5 * time.Minute):
		t.Errorf("it does not lead: %+v", lease.Status())
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// A read that gets no answer, as on a dead connection, does not hold up a standby. The time of several in a row does not count.
func TestReadsWithoutAnAnswer(t *testing.T) {
	for hang, most := range map[int]time.Duration{1: 12 * time.Second, 3: 24 * time.Second} {
		t.Run(fmt.Sprint(hang), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := &slowServer{}
				got := elected(t, server, func() {
					time.Sleep(5200 * time.Millisecond)
					server.mu.Lock()
					server.hang = hang
					server.mu.Unlock()
				})
				if got > most {
					t.Errorf("it leads after %v", got)
				}
			})
		})
	}
}

// A standby waits for answers for as long as a slow API server takes.
func TestSlowReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if got := elected(t, &slowServer{read: 1900 * time.Millisecond}, func() {}); got > 30*time.Second {
			t.Errorf("it leads after %v", got)
		}
	})
}

// A standby takes the Lease of an API server that needs long for each call.
func TestSlowUpdate(t *testing.T) {
	for _, takes := range []time.Duration{1100 * time.Millisecond, 3 * time.Second} {
		t.Run(takes.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if got := elected(t, &slowServer{read: takes, write: takes}, func() {}); got > 40*time.Second {
					t.Errorf("it leads after %v", got)
				}
			})
		})
	}
}

// A standby whose update comes too late reads the Lease of the one that was faster as often as any other.
func TestAnotherIsFaster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{write: time.Second}
		reads := 0
		got := elected(t, server, func() {
			time.Sleep(10500 * time.Millisecond)
			server.mu.Lock()
			faster, other := server.lease.DeepCopy(), "other"
			faster.Spec.HolderIdentity = &other
			server.put(faster)
			server.mu.Unlock()
			time.Sleep(4 * time.Second)
			before := server.readsSoFar()
			time.Sleep(5 * time.Second)
			reads = server.readsSoFar() - before
		})
		if got < 20*time.Second || got > 25*time.Second || reads < 9 {
			t.Errorf("it leads after %v, and has read the Lease %d times in 5 s", got, reads)
		}
	})
}

// An update that gets no answer does not begin the wait for the Lease anew.
func TestUpdateWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for behind, most := range []time.Duration{16 * time.Second, 20 * time.Second} {
			if got := elected(t, &slowServer{hangs: 1, behind: behind}, func() {}); got > most {
				t.Errorf("with %d reads without an answer behind it, it leads after %v", behind, got)
			}
		}
	})
}

// An error of one call does not hold up a hand-over: deliveries pause meanwhile.
func TestHandOverWithOneError(t *testing.T) {
	for name, server := range map[string]*slowServer{"read": {badRead: 2}, "update": {fails: 1}} { // the first read finds it free
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lease := &coordinationv1.Lease{}
				lease.Annotations = map[string]string{"kubeferry.dev/term": "1", "kubeferry.dev/released": "1"}
				server.put(lease)
				if got := led(t, server, func() {}); got > 500*time.Millisecond {
					t.Errorf("it leads after %v", got)
				}
			})
		})
	}
}

// An error that stays is no reason for many requests, and is in the log once.
func TestNoRightToTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{fails: 100}
		if got := elected(t, server, func() {}); got < 100*time.Second {
			t.Errorf("100 updates in %v", got)
		}
		if n := strings.Count(server.log.String(), "cannot take the Lease"); n != 1 {
			t.Errorf("it was logged %d times", n)
		}
	})
}

// Why a leader cannot renew the Lease is in the log once for each request that fails, and once more after a success.
func TestWhyTheLeaseIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{}
		elected(t, server, func() {}) // so that the Lease is there
		end := lead(t, server, func() {})
		for outage := range 2 {
			server.mu.Lock()
			server.resets = 20
			server.mu.Unlock()
			time.Sleep(time.Minute)
			synctest.Wait()
			if n, want := strings.Count(server.log.String(), "cannot renew the Lease"), 2*(outage+1); n != want {
				t.Errorf("logged %d times, want %d, after outage %d", n, want, outage+1)
			}
		}
		before := server.log.Len()
		end()
		if server.log.Len() != before {
			t.Errorf("logged at the end: %s", server.log.String()[before:])
		}
	})
}

// The same error is in the log again if the Lease was another's meanwhile.
func TestWhyTheLeaseIsNotTakenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := &slowServer{fails: 4}
		elected(t, server, func() {
			time.Sleep(10500 * time.Millisecond)
			server.mu.Lock()
			defer server.mu.Unlock()
			faster, other := server.lease.DeepCopy(), "other"
			faster.Spec.HolderIdentity = &other
			server.put(faster)
		})
		if n := strings.Count(server.log.String(), "cannot take the Lease"); n != 2 {
			t.Errorf("logged %d times, want 2: %s", n, server.log.String())
		}
	})
}
