package pipeline

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// The sink is away for a while, beside many namespaces of which it refuses all: once it is back, the others go on at once.
func TestOutageBesideRefusedNamespaces(t *testing.T) {
	for _, test := range []struct {
		namespaces int
		away       time.Duration
		hangs      bool // while it is away
		goesOn     bool // these namespaces change meanwhile
	}{
		{namespaces: 100, away: 15 * time.Second},
		{namespaces: 100, away: time.Minute, hangs: true},
		{namespaces: 5, away: time.Minute, goesOn: true},
		{namespaces: 100, away: time.Minute, goesOn: true},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
				defer stop()
				sent := 0
				goOn := func(d time.Duration) {
					for range d / (200 * time.Millisecond) {
						sent++
						mustTake(t, p, changeIn(t, "other", fmt.Sprint("good-", sent), sent))
						if test.goesOn {
							mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", sent%test.namespaces), fmt.Sprint("bad-more-", sent), sent))
						}
						time.Sleep(200 * time.Millisecond)
					}
				}
				goOn(time.Minute)
				for n := range 10 * test.namespaces {
					mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%test.namespaces), fmt.Sprint("bad-", n), 1))
				}
				goOn(time.Minute)
				set := func(away bool) {
					sink.mu.Lock()
					sink.away, sink.latency = away, 5*time.Millisecond
					if away && test.hangs {
						sink.latency = callTimeout
					}
					sink.mu.Unlock()
				}
				set(true)
				goOn(test.away)
				set(false)
				missing := func() int {
					goOn(5 * time.Second)
					sink.mu.Lock()
					defer sink.mu.Unlock()
					return sent - len(sink.took)
				}
				if n := missing(); n > 40 { // what failed as a probe, or with others, waits for its backoff
					t.Errorf("%d of %d did not arrive 5 s after the sink was back", n, sent)
				}
				goOn(30 * time.Second)
				if n := missing(); n > 1 {
					t.Errorf("%d of %d did not arrive", n, sent)
				}
			})
		})
	}
}

// A batch of two namespaces is refused for good, after a start in an outage: it does not have all probes of what failed.
func TestRefusedBatchOfTwoNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := func(context.Context) error { return sinks.Permanent(sinks.ReasonRejected, errDown) }
		sink := &tenants{bad: bad, perRecord: true, away: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
		defer stop()
		for n := range 20 {
			mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%2), fmt.Sprint("bad-", n), n+1))
		}
		time.Sleep(100 * time.Millisecond)
		mustTake(t, p, change(t, "good", 1))
		time.Sleep(200 * time.Millisecond)
		sink.mu.Lock()
		sink.away = false
		sink.mu.Unlock()
		time.Sleep(10 * time.Second)
		sink.mu.Lock()
		_, took := sink.took["good"]
		sink.mu.Unlock()
		if !took {
			t.Errorf("the good change waits: %+v", p.Stats())
		}
	})
}

// A namespace with one object that the sink refuses is not stopped for others that have too many of them, and its other objects go on.
func TestOneRefusedObjectBesideTooMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, perRecord: true, took: map[string]time.Time{}, latency: time.Millisecond}
		b := newLogbook()
		p, stop := launch(sink, &letters{}, func(o *Options) {
			tenantLimits(100, 8)(o)
			spilling(b, 16<<20, 1<<30)(o)
		})
		defer stop()
		endCommits := b.commits(p, 200*time.Millisecond)
		defer endCommits()
		mustTake(t, p, changeIn(t, "few", "bad-1", 1))
		time.Sleep(2 * time.Second)
		for n := range 4000 {
			for m := 0; n == 2500 && m < 100; m++ { // the sink works: it is these that it refuses
				mustTake(t, p, changeIn(t, "works", fmt.Sprint("works-", m), 5000+m))
				time.Sleep(100 * time.Millisecond)
			}
			mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%2), fmt.Sprint("bad-", n), n+1))
		}
		time.Sleep(5 * time.Second)
		sent := map[string]time.Time{}
		for n := range 60 {
			name := fmt.Sprint("good-", n)
			sent[name] = time.Now()
			mustTake(t, p, changeIn(t, "few", name, 10_000+n))
			time.Sleep(2 * time.Second)
		}
		time.Sleep(10 * time.Second)
		waits := sink.waits(t, sent)
		if s := p.Stats(); s.OnDisk < 1000 || waits[len(waits)-1] > 10*time.Second {
			t.Errorf("the longest wait is %v, %d on disk", waits[len(waits)-1], s.OnDisk)
		}
	})
}

// Namespaces of which the sink refuses two of three changes, by whole calls, hold up no other.
func TestManyNamespacesThatAreRefusedInPart(t *testing.T) {
	for _, namespaces := range []int{5, 20, 60, 200} {
		t.Run(fmt.Sprint(namespaces), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 20 * time.Millisecond}
				p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
				defer stop()
				sent := map[string]time.Time{}
				for n := range 800 {
					if n%4 == 0 {
						name := fmt.Sprint("good-", n)
						sent[name] = time.Now()
						mustTake(t, p, changeIn(t, "other", name, n+1))
					}
					name := fmt.Sprint("taken-", n)
					if n/namespaces%3 != 0 {
						name = fmt.Sprint("bad-", n)
					}
					mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%namespaces), name, n+1))
					time.Sleep(250 * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				if waits := sink.waits(t, sent); waits[len(waits)*99/100] > 5*time.Second {
					t.Error("that is too long")
				}
			})
		})
	}
}

// A sink that is away gets few calls, however many namespaces there are.
func TestProbesOfManyNamespacesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, away: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
		defer stop()
		for n := range 50 * 60 {
			mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", n%500), fmt.Sprint("x-", n), n+1))
			time.Sleep(20 * time.Millisecond)
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if sink.calls > 20+42 {
			t.Errorf("%d calls in a minute, want about 40, and those of the first second", sink.calls)
		}
	})
}
