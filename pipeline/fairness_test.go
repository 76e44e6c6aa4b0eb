package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// tenants is a sink that fails every call which holds a record of an object named bad-…, as a receiver behind a firewall
// does, and takes the others.
type tenants struct {
	// bad answers a call with such a record.
	bad func(ctx context.Context) error // a test that changes it holds mu
	// perRecord fails these records only, as a broker does.
	perRecord bool
	// latency is of each call; with spread, each call takes up to twenty times as long.
	latency time.Duration
	spread  bool

	mu      sync.Mutex
	calls   int
	away    bool
	took    map[string]time.Time // by name of the object
	refused int                  // of perRecord
}

func (s *tenants) Deliver(ctx context.Context, batch []sinks.Record) error {
	s.mu.Lock()
	s.calls++
	away, bad, latency := s.away, s.bad, s.latency
	if s.spread {
		latency *= time.Duration(1 + s.calls*7%20)
	}
	s.mu.Unlock()
	time.Sleep(latency)
	if away {
		return errDown
	}
	errs := make([]error, len(batch))
	failed := false
	isBad := func(record sinks.Record) bool { return strings.Contains(record.Key, "/bad-") }
	for _, record := range batch {
		if s.perRecord && !isBad(record) { // acknowledged before the others are answered
			s.take(record)
		}
	}
	for n, record := range batch {
		if !isBad(record) {
			continue
		}
		if errs[n] = bad(ctx); errs[n] != nil {
			failed = true
			if !s.perRecord {
				return errs[n]
			}
			s.mu.Lock()
			s.refused++
			s.mu.Unlock()
		}
	}
	for n, record := range batch {
		if errs[n] == nil && (!s.perRecord || isBad(record)) {
			s.take(record)
		}
	}
	if failed {
		return &sinks.BatchError{Errs: errs}
	}
	return nil
}

func (s *tenants) take(record sinks.Record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took[record.Key[strings.LastIndexByte(record.Key, '/')+1:]] = time.Now()
}

func (*tenants) Close(context.Context) error { return nil }

func (s *tenants) refusals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refused
}

// waits returns how long changes took to arrive, in order, and reports those that did not.
func (s *tenants) waits(t testing.TB, sent map[string]time.Time) (waits []time.Duration) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, at := range sent {
		if took, ok := s.took[name]; ok {
			waits = append(waits, took.Sub(at))
		}
	}
	if len(waits) < len(sent) {
		t.Fatalf("%d of %d changes arrived", len(waits), len(sent))
	}
	slices.Sort(waits)
	t.Logf("p50 %v, p99 %v, max %v, %d calls", waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1], s.calls)
	return waits
}

// callTimeout ends a call that hangs.
const callTimeout = 10 * time.Second

// tenantLimits are much memory, backoffs as by default, and so many records a call and calls at once.
func tenantLimits(records, concurrency int) func(*Options) {
	return func(o *Options) {
		o.MaxBytes = 64 << 20
		o.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
		o.Limits = sinks.Limits{MaxRecords: records, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond, Concurrency: concurrency, Timeout: callTimeout}
	}
}

func refuse(context.Context) error { return errDown }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return sinks.Transient(sinks.ReasonTimeout, context.Cause(ctx))
}

// Records that a sink refuses, or hangs on, cost their own objects and no others: beside a thousand such objects, fifty
// good changes a second all arrive within 5 s.
func TestRefusedObjectsHoldUpOnlyThemselves(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		bad     int
		sink    *tenants
		records int
		// again changes the refused objects all the time; others lets changes of other namespaces come.
		again, others bool
	}{
		{name: "a batch is refused", bad: 1000, sink: &tenants{bad: refuse}, records: 100},
		{name: "a batch is refused, and its objects change", bad: 1000, sink: &tenants{bad: refuse}, records: 100, again: true},
		{name: "a record is refused", bad: 1000, sink: &tenants{bad: refuse}, records: 1, others: true},
		{name: "a record of a batch is refused", bad: 1000, sink: &tenants{bad: refuse, perRecord: true}, records: 100},
		{name: "a call hangs", bad: 40, sink: &tenants{bad: hang}, records: 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := test.sink
				sink.took, sink.latency = map[string]time.Time{}, 5*time.Millisecond
				p, stop := launch(sink, &letters{}, tenantLimits(test.records, 8))
				defer stop()
				for n := range test.bad {
					mustTake(t, p, change(t, fmt.Sprint("bad-", n), n+1))
				}
				sent := map[string]time.Time{}
				for n := range 50 * 30 {
					name := fmt.Sprint("good-", n)
					sent[name] = time.Now()
					mustTake(t, p, change(t, name, 10_000+n))
					if test.others { // else the sink could be away for all that can be known
						mustTake(t, p, changeIn(t, fmt.Sprint("other-", n%10), name, 10_000+n))
					}
					if test.again {
						mustTake(t, p, change(t, fmt.Sprint("bad-", n%test.bad), 10_000+n))
					}
					time.Sleep(20 * time.Millisecond)
				}
				time.Sleep(20 * time.Minute) // where a call hangs, each half of a batch with a good change may
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > 5*time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
			})
		})
	}
}

// When the first changes of another namespace come after a thousand refused objects, they arrive soon: the time to find out does not
// depend on how many are refused, nor on how long a call takes.
func TestRefusedObjectsAreToldFromAnotherNamespace(t *testing.T) {
	for _, latency := range []time.Duration{5 * time.Millisecond, 40 * time.Millisecond, 200 * time.Millisecond} {
		for _, perRecord := range []bool{false, true} {
			t.Run(fmt.Sprintf("latency %v, per record %t", latency, perRecord), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: latency, perRecord: perRecord}
					p, stop := launch(sink, &letters{}, tenantLimits(25, 8))
					defer stop()
					for n := range 1000 {
						mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", n), n+1))
						time.Sleep(5 * time.Millisecond)
					}
					sent := takeGood(t, p, 50*6)
					time.Sleep(5 * time.Second)
					if waits := sink.waits(t, sent); waits[len(waits)-1] > 5*time.Second {
						t.Errorf("a change took %v", waits[len(waits)-1])
					}
				})
			})
		}
	}
}

// A tenant who makes new objects all the time that the sink refuses, for good or not, does not keep the few changes of another
// namespace waiting.
func TestNewRefusedObjectsHoldUpNoOtherNamespace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		bad  func(context.Context) error
		// rates are per second.
		good, refused float64
		perRecord     bool
		concurrency   int
	}{
		{"refused, beside a few", refuse, 0.2, 20, false, 8},
		{"refused, beside some", refuse, 5, 20, false, 8},
		{"refused, two calls at once", refuse, 25, 100, false, 2},
		{"refused, one call at a time", refuse, 25, 100, false, 1},
		{"refused for good, beside a few", rejected, 0.2, 20, true, 8},
		{"refused for good, beside some", rejected, 5, 20, true, 8},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: test.bad, perRecord: test.perRecord, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				p, stop := launch(sink, &letters{}, tenantLimits(100, test.concurrency))
				defer stop()
				sent := map[string]time.Time{}
				begun := time.Now()
				for bad, good := 0, 0; time.Since(begun) < 2*time.Minute; time.Sleep(10 * time.Millisecond) {
					for passed := time.Since(begun).Seconds(); float64(bad) < passed*test.refused; bad++ {
						mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", bad), bad+1))
					}
					for passed := time.Since(begun).Seconds() - 10; float64(good) < passed*test.good; good++ {
						name := fmt.Sprint("good-", good)
						sent[name] = time.Now()
						mustTake(t, p, change(t, name, 10_000+good))
					}
				}
				time.Sleep(15 * time.Second)
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > 5*time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
			})
		})
	}
}

// A tenant's records that the sink refuses for good do not stop a pipeline that has no log, also not when they fill its memory.
func TestRefusedForGoodWithoutALog(t *testing.T) {
	for _, test := range []struct {
		name   string
		reason sinks.Reason
		within time.Duration
	}{
		{"too large", sinks.ReasonTooLarge, time.Second},
		{"rejected", sinks.ReasonRejected, 2 * time.Minute}, // as fast as probes find out
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bad := func(context.Context) error { return sinks.Permanent(test.reason, errDown) }
				sink := &tenants{bad: bad, perRecord: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				p, stop := launch(sink, &letters{}, func(o *Options) {
					o.MaxBytes = 256 << 10
					o.Limits.Timeout = 10 * time.Second
				})
				defer stop()
				mustTake(t, p, change(t, "first", 1))
				drain(t, p)
				begun := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				defer cancel()
				for n := range 60 {
					if err := p.Delta(ctx, largeChange(t, fmt.Sprint("bad-", n), n+2, 16<<10)); err != nil {
						t.Fatalf("%d were taken: %v", n, err)
					}
				}
				mustTake(t, p, change(t, "good", 100))
				drain(t, p)
				if took := sink.took["good"].Sub(begun); took > test.within {
					t.Errorf("a change of another object arrived after %v", took)
				}
			})
		})
	}
}

// Changes of others are found in the log, and tried, though a tenant's objects that the sink refuses lie before them in any number.
func TestManyRefusedObjectsInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, away: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		b := newLogbook()
		p, stop := launch(sink, &letters{}, func(o *Options) {
			tenantLimits(100, 8)(o)
			spilling(b, 512<<10, 1<<30)(o)
		})
		defer stop()
		endCommits := b.commits(p, 200*time.Millisecond)
		defer endCommits()
		const bad, good = 52_000, 50
		for n := range bad {
			mustTake(t, p, changeIn(t, "bad", fmt.Sprint("bad-", n), n+1))
		}
		for n := range good {
			mustTake(t, p, changeIn(t, "good", fmt.Sprint("good-", n), bad+n+1))
		}
		time.Sleep(time.Minute)
		sink.mu.Lock()
		sink.away = false
		sink.mu.Unlock()
		time.Sleep(5 * time.Minute)
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if len(sink.took) < good {
			t.Errorf("%d of %d good changes arrived; %+v", len(sink.took), good, p.Stats().Counts)
		}
	})
}

// Records that the sink refuses for good, while there is no room for their dead letters, leave room for the others. They wait in the
// log, and become dead letters once there is room for them, without being sent again.
func TestRefusedForGoodWithoutRoomForLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: rejected, perRecord: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		b, dead := newLogbook(), &letters{fail: errors.New("no room")}
		p, stop := launch(sink, dead, func(o *Options) {
			tenantLimits(100, 8)(o)
			spilling(b, 2<<20, 1<<30)(o)
		})
		defer stop()
		endCommits := b.commits(p, 200*time.Millisecond)
		defer endCommits()
		const bad = 60
		mustTake(t, p, change(t, "first", 100)) // else it could be the sink that fails
		drain(t, p)
		for n := range bad {
			mustTake(t, p, largeChange(t, fmt.Sprint("bad-", n/3), n+1, 40<<10)) // three of each object
		}
		sent := takeGood(t, p, 20*50)
		time.Sleep(10 * time.Second)
		if waits := sink.waits(t, sent); waits[len(waits)-1] > 5*time.Second {
			t.Error("that is too late")
		}
		dead.mu.Lock()
		dead.fail = nil
		dead.mu.Unlock()
		time.Sleep(time.Minute)
		endCommits()
		settled(t, p, b)
		if n := len(dead.ids()); n != bad {
			t.Errorf("%d dead letters, want %d", n, bad)
		}
		if n := sink.refusals(); n != bad {
			t.Errorf("%d records were refused, want each of %d once", n, bad)
		}
		counted := 0
		for _, letter := range dead.got {
			if letter.Reason != string(sinks.ReasonTooLarge) {
				t.Errorf("%s: reason %s", letter.Record.ID, letter.Reason)
			}
			if letter.Attempts == 1 && !letter.First.IsZero() {
				counted++
			}
		}
		if counted < bad/3 {
			t.Errorf("%d letters with their attempt, want that of each object's first record", counted)
		}
	})
}

func rejected(context.Context) error {
	return sinks.Permanent(sinks.ReasonTooLarge, errDown)
}

// changeIn is change in another namespace.
func changeIn(t testing.TB, namespace, name string, version int) *delta.Delta {
	return inNamespace(t, change(t, name, version), namespace)
}

// takeGood hands fifty changes a second over that the sink takes, and returns when each was.
func takeGood(t testing.TB, p *Pipeline, count int) map[string]time.Time {
	sent := map[string]time.Time{}
	for n := range count {
		name := fmt.Sprint("good-", n)
		sent[name] = time.Now()
		mustTake(t, p, change(t, name, 10_000+n))
		time.Sleep(20 * time.Millisecond)
	}
	return sent
}

// inNamespace puts the object of a delta into another namespace.
func inNamespace(t testing.TB, d *delta.Delta, namespace string) *delta.Delta {
	object, err := delta.NewObject(bytes.Replace(d.Object.JSON(), []byte(`"shop"`), fmt.Appendf(nil, "%q", namespace), 1))
	if err != nil {
		t.Fatal(err)
	}
	d.Object = object
	return d
}

// A sink that is away gets no more than its probes, however many objects it refused before.
func TestSinkThatIsAwayGetsProbesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
		defer stop()
		for n := range 1000 {
			mustTake(t, p, change(t, fmt.Sprint("bad-", n), n+1))
		}
		for n := range 50 * 20 {
			mustTake(t, p, change(t, fmt.Sprint("good-", n), 10_000+n))
			time.Sleep(20 * time.Millisecond)
		}
		sink.mu.Lock()
		sink.away = true
		sink.mu.Unlock()
		time.Sleep(20 * time.Second) // what was under way comes back, and the sink counts as away
		sink.mu.Lock()
		before := sink.calls
		sink.mu.Unlock()
		for n := range 50 * 60 {
			mustTake(t, p, change(t, fmt.Sprint("late-", n), 20_000+n))
			time.Sleep(20 * time.Millisecond)
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if got := sink.calls - before; got > 65 {
			t.Errorf("%d calls in a minute, want about 40 probes", got)
		}
	})
}

// Objects that the sink refuses leave room for the others, also when the backlog has spilled, and after a restart: what waits
// for its backoff is kept in the log only, and each namespace has a cursor of its own there.
func TestRefusedObjectsLeaveRoom(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ memory, bad, size int }{
		{640 << 10, 60, 9000},
		{512 << 10, 1000, 3000},
		{2 << 20, 1000, 3000},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d of %d B in %d KiB, restart %t", test.bad, test.size, test.memory>>10, restart), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					sink := &tenants{bad: refuse, away: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
					b := newLogbook()
					adjust := func(o *Options) {
						tenantLimits(100, 8)(o)
						spilling(b, int64(test.memory), 1<<30)(o)
					}
					p, stop := launch(sink, &letters{}, adjust)
					endCommits := b.commits(p, 200*time.Millisecond)
					const early, late = 3000, 50 * 20
					for n := range test.bad {
						mustTake(t, p, inNamespace(t, largeChange(t, fmt.Sprint("bad-", n), n+1, test.size), "tenant"))
					}
					for n := range early {
						mustTake(t, p, change(t, fmt.Sprint("good-", n), 10_000+n))
					}
					time.Sleep(time.Minute)
					sink.mu.Lock()
					if sink.calls > 8+50 { // one with each call that it takes at once, and the probes
						t.Errorf("%d calls in the first minute", sink.calls)
					}
					sink.mu.Unlock()
					if restart {
						endCommits()
						stop()
						b.commit(p)
						p, stop = launch(sink, &letters{}, adjust)
						endCommits = b.commits(p, 200*time.Millisecond)
					}
					sink.mu.Lock()
					sink.away = false
					sink.mu.Unlock()
					began := time.Now()
					sent := map[string]time.Time{}
					for n := range late {
						name := fmt.Sprint("late-", n)
						sent[name] = time.Now()
						mustTake(t, p, change(t, name, 20_000+n))
						time.Sleep(20 * time.Millisecond)
					}
					time.Sleep(10 * time.Second)
					sink.mu.Lock()
					if len(sink.took) < early+late {
						t.Errorf("%d of %d good changes arrived; %+v", len(sink.took), early+late, p.Stats())
					}
					var worst, last time.Duration
					for name, took := range sink.took {
						if at, ok := sent[name]; ok {
							worst = max(worst, took.Sub(at))
						} else {
							last = max(last, took.Sub(began))
						}
					}
					t.Logf("what waited arrived within %v, what came later took up to %v; %d calls", last, worst, sink.calls)
					sink.bad = func(context.Context) error { return nil }
					sink.mu.Unlock()
					time.Sleep(time.Minute)
					endCommits()
					settled(t, p, b)
					stop()
					if len(sink.took) != test.bad+early+late {
						t.Errorf("%d of %d changes arrived", len(sink.took), test.bad+early+late)
					}
				})
			})
		}
	}
}

// Large objects that the sink refuses, and that come first in a log after a restart, leave room for the changes of another namespace:
// these are sent from beyond the log's cursor until it passes the others. The first of them is the next probe, whenever it comes.
func TestLargeRefusedObjectsFirstInTheLog(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 100 * time.Millisecond}
			b := newLogbook()
			adjust := func(o *Options) {
				tenantLimits(1, 8)(o)
				spilling(b, 2<<20, 1<<30)(o)
			}
			p, stop := launch(sink, &letters{}, adjust)
			endCommits := b.commits(p, 200*time.Millisecond)
			for n := range 40 {
				mustTake(t, p, inNamespace(t, largeChange(t, fmt.Sprint("bad-", n), n+1, 28<<10), "tenant"))
			}
			time.Sleep(time.Second)
			endCommits()
			stop()
			b.commit(p)
			p, stop = launch(sink, &letters{}, adjust)
			defer stop()
			defer b.commits(p, 200*time.Millisecond)()
			time.Sleep(10*time.Second + time.Duration(round)*300*time.Millisecond)
			sent := takeGood(t, p, 50*4)
			time.Sleep(10 * time.Second)
			if waits := sink.waits(t, sent); waits[len(waits)-1] > 2500*time.Millisecond {
				t.Errorf("round %d: a change took %v", round, waits[len(waits)-1])
			}
		})
	}
}

// What waited in a log behind refused objects arrives soon after a restart, also when nothing new comes that would show that the sink
// works.
func TestBacklogBehindRefusedObjects(t *testing.T) {
	t.Parallel()
	for round := range 40 {
		synctest.Test(t, func(t *testing.T) {
			sink := &tenants{bad: refuse, away: true, took: map[string]time.Time{}, latency: time.Duration(1+round%5*5) * time.Millisecond, spread: true}
			b := newLogbook()
			adjust := func(o *Options) {
				tenantLimits(25, 8)(o)
				spilling(b, 4<<20, 1<<30)(o)
			}
			p, stop := launch(sink, &letters{}, adjust)
			endCommits := b.commits(p, 200*time.Millisecond)
			for n := range 1000 {
				mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", n), n+1))
			}
			sent := map[string]time.Time{}
			for n := range 5 + 7*round {
				name := fmt.Sprint("good-", n)
				sent[name] = time.Now().Add(12 * time.Second) // when the sink is back
				mustTake(t, p, largeChange(t, name, 10_000+n, 12<<10))
			}
			time.Sleep(10 * time.Second)
			endCommits()
			stop()
			b.commit(p)
			time.Sleep(2 * time.Second)
			sink.mu.Lock()
			sink.away = false
			sink.mu.Unlock()
			p, stop = launch(sink, &letters{}, adjust)
			defer stop()
			defer b.commits(p, 200*time.Millisecond)()
			time.Sleep(2 * time.Minute)
			if waits := sink.waits(t, sent); waits[len(waits)-1] > 5*time.Second {
				t.Errorf("round %d: a change took %v", round, waits[len(waits)-1])
			}
		})
	}
}

// A gap that the sink refuses holds up no changes, of its watch or another, not even those of objects that change often.
func TestRefusedGapBeforeAFullMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		var mu sync.Mutex
		took := map[string]time.Time{}
		sink.set(func(_ int, batch []sinks.Record) error {
			time.Sleep(5 * time.Millisecond)
			mu.Lock()
			defer mu.Unlock()
			errs := make([]error, len(batch))
			for n, r := range batch {
				if strings.HasSuffix(r.ID, "/GAP") {
					errs[n] = sinks.Transient(sinks.ReasonNotFound, errDown)
				} else {
					took[r.ID] = time.Now()
				}
			}
			return &sinks.BatchError{Errs: errs}
		})
		const memory = 256 << 10
		p, stop := launch(sink, &letters{}, func(o *Options) {
			tenantLimits(100, 8)(o)
			spilling(b, memory, 1<<30)(o)
		})
		defer stop()
		endCommits := b.commits(p, 200*time.Millisecond)
		defer endCommits()
		mustTake(t, p, change(t, "first", 1))
		if err := p.Gap(t.Context(), &delta.Gap{Watch: "w", Resource: pods, From: "1", To: "90", Observed: time.Now()}); err != nil {
			t.Fatal(err)
		}
		const behind = 100 // 400 KiB
		for n := range behind {
			mustTake(t, p, largeChange(t, fmt.Sprint("behind-", n), 2, 4<<10))
		}
		sent := map[string]time.Time{}
		for n := range 20 * 60 * 4 {
			d := changeIn(t, "other", fmt.Sprint("good-", n%20), n+1)
			d.Watch = "w2"
			sent[d.ID("c")] = time.Now()
			mustTake(t, p, d)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(10 * time.Second)
		if s := p.Stats(); s.Waiting > 0 || s.GapsWaiting != 1 {
			t.Errorf("got %+v", s)
		}
		var waits []time.Duration
		mu.Lock()
		for id, at := range sent {
			if took[id].IsZero() {
				took[id] = time.Now()
			}
			waits = append(waits, took[id].Sub(at))
		}
		mu.Unlock()
		slices.Sort(waits)
		t.Logf("p99 %v, max %v", waits[len(waits)*99/100], waits[len(waits)-1])
		if waits[len(waits)*99/100] > 5*time.Second {
			t.Error("that is too much")
		}
		sink.set(nil)
		time.Sleep(time.Minute)
		endCommits()
		settled(t, p, b)
		if n := len(sink.storedIDs()); n != 2+behind+len(sent) {
			t.Errorf("%d of %d arrived", n, 2+behind+len(sent))
		}
	})
}

// An object that failed in one batch with refused ones does not meet them again after each backoff, where few other changes
// show that the sink works.
func TestBackoffsOfABatchPart(t *testing.T) {
	for ms := 10; ms < 200; ms += 10 {
		synctest.Test(t, func(t *testing.T) {
			sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: time.Millisecond}
			p, stop := launch(sink, &letters{}, func(o *Options) {
				o.Retry = Retry{Initial: 10 * time.Millisecond, Max: 10 * time.Second}
				o.Limits = sinks.Limits{MaxRecords: 100, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond, Concurrency: 2, Timeout: time.Second}
			})
			defer stop()
			for _, name := range []string{"bad-1", "good", "bad-2"} {
				mustTake(t, p, change(t, name, 1))
			}
			for n := 0; n < 30_000/ms; n++ {
				mustTake(t, p, change(t, fmt.Sprint("other-", n), n+2))
				time.Sleep(time.Duration(ms) * time.Millisecond)
			}
			sink.mu.Lock()
			defer sink.mu.Unlock()
			if _, ok := sink.took["good"]; !ok {
				t.Errorf("did not arrive in 30 s beside a change every %d ms", ms)
			}
		})
	}
}

// largeChange is change with an object of at least so many bytes.
func largeChange(t testing.TB, name string, version, size int) *delta.Delta {
	d := change(t, name, version)
	raw := slices.Concat(d.Object.JSON()[:len(d.Object.JSON())-1], fmt.Appendf(nil, `,"pad":%q}`, strings.Repeat("x", size)))
	object, err := delta.NewObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	d.Object = object
	return d
}

// One object that the sink refuses is no reason to blame the sink, however often it is tried and though nothing else happens for long.
func TestOneRefusedObjectInAQuietCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		p, stop := launch(sink, &letters{}, tenantLimits(100, 8))
		defer stop()
		mustTake(t, p, change(t, "bad-1", 1))
		mustTake(t, p, change(t, "good-1", 1))
		time.Sleep(time.Hour)
		if s := p.Stats(); !s.AwaySince.IsZero() {
			sink.mu.Lock()
			t.Errorf("the sink is blamed after %d calls: %s", sink.calls, s.LastError)
			sink.mu.Unlock()
		}
		sent := map[string]time.Time{"good-2": time.Now()}
		mustTake(t, p, change(t, "good-2", 2))
		time.Sleep(10 * time.Second)
		if waits := sink.waits(t, sent); waits[0] > 100*time.Millisecond {
			t.Errorf("a change of another object took %v", waits[0])
		}
	})
}

// A sink that goes away in the middle of a load gets what was under way, the first probes, and then one in a second and a half:
// calls that fail beside the last successes do not make it look like one that refuses some objects only.
func TestOutageBeginsWithFewCalls(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: time.Duration(1+round) * time.Millisecond, spread: true}
			p, stop := launch(sink, &letters{}, tenantLimits(1, 8))
			defer stop()
			began := 0
			for n := range 500 * 22 {
				if n == 500*2 {
					sink.mu.Lock()
					sink.away, began = true, sink.calls
					sink.mu.Unlock()
				}
				mustTake(t, p, change(t, fmt.Sprint("o-", n%2000), n+1))
				time.Sleep(2 * time.Millisecond)
			}
			sink.mu.Lock()
			defer sink.mu.Unlock()
			if got := sink.calls - began; got > 30+20 {
				t.Errorf("%d calls in 20 s, want at most 50", got)
			}
		})
	}
}

// An outage that one record meets is logged once. The record that fails is logged once too, however often it is tried.
func TestFailuresAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		var log strings.Builder
		p, stop := launchLogged(sink, &letters{}, slog.NewTextHandler(&log, nil), tenantLimits(100, 8))
		defer stop()
		mustTake(t, p, change(t, "bad-1", 1))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if text := log.String(); strings.Count(text, "record fails") != 1 || strings.Count(text, "is away") != 1 {
			t.Errorf("the log has\n%s", text)
		}
	})
}
