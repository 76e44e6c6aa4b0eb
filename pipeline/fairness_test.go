package pipeline

import (
	"context"
	"fmt"
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

	mu    sync.Mutex
	calls int
	away  bool
	took  map[string]time.Time // by name of the object
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
	for n, record := range batch {
		if !strings.Contains(record.Key, "/bad-") {
			continue
		}
		if errs[n] = bad(ctx); errs[n] != nil {
			failed = true
			if !s.perRecord {
				return errs[n]
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for n, record := range batch {
		if errs[n] == nil {
			s.took[record.Key[strings.LastIndexByte(record.Key, '/')+1:]] = time.Now()
		}
	}
	if failed {
		return &sinks.BatchError{Errs: errs}
	}
	return nil
}

func (*tenants) Close(context.Context) error { return nil }

func refuse(context.Context) error { return errDown }

func hang(ctx context.Context) error {
	<-ctx.Done()
	return sinks.Transient(sinks.ReasonTimeout, context.Cause(ctx))
}

// Records that a sink refuses, or hangs on, cost their own objects and no others: beside a thousand such objects, fifty
// good changes a second all arrive within 5 s.
func TestRefusedObjectsHoldUpOnlyThemselves(t *testing.T) {
	for _, test := range []struct {
		name    string
		bad     int
		sink    *tenants
		records int
		// again changes the refused objects all the time.
		again bool
	}{
		{name: "a batch is refused", bad: 1000, sink: &tenants{bad: refuse}, records: 100},
		{name: "a batch is refused, and its objects change", bad: 1000, sink: &tenants{bad: refuse}, records: 100, again: true},
		{name: "a record is refused", bad: 1000, sink: &tenants{bad: refuse}, records: 1},
		{name: "a record of a batch is refused", bad: 1000, sink: &tenants{bad: refuse, perRecord: true}, records: 100},
		{name: "a call hangs", bad: 40, sink: &tenants{bad: hang}, records: 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := test.sink
				sink.took, sink.latency = map[string]time.Time{}, 5*time.Millisecond
				p, stop := launch(sink, &letters{}, func(o *Options) {
					o.MaxBytes = 64 << 20
					o.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
					o.Limits = sinks.Limits{
						MaxRecords: test.records, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond, Concurrency: 8, Timeout: 10 * time.Second,
					}
				})
				defer stop()
				for n := range test.bad {
					mustTake(t, p, change(t, fmt.Sprint("bad-", n), n+1))
				}
				sent := map[string]time.Time{}
				for n := range 50 * 60 {
					name := fmt.Sprint("good-", n)
					sent[name] = time.Now()
					mustTake(t, p, change(t, name, 10_000+n))
					if test.again {
						mustTake(t, p, change(t, fmt.Sprint("bad-", n%test.bad), 10_000+n))
					}
					time.Sleep(20 * time.Millisecond)
				}
				time.Sleep(10 * time.Second)
				sink.mu.Lock()
				defer sink.mu.Unlock()
				var waits []time.Duration
				for name, at := range sent {
					if took, ok := sink.took[name]; ok {
						waits = append(waits, took.Sub(at))
					}
				}
				if len(waits) < len(sent) {
					t.Errorf("%d of %d good changes arrived", len(waits), len(sent))
				}
				slices.Sort(waits)
				if len(waits) > 0 {
					if p99 := waits[len(waits)*99/100]; p99 > 5*time.Second {
						t.Errorf("the p99 of good changes is %v", p99)
					}
					t.Logf("p50 %v, p99 %v, max %v, %d calls", waits[len(waits)/2], waits[len(waits)*99/100], waits[len(waits)-1], sink.calls)
				}
			})
		})
	}
}

// A sink that is away gets no more than its probes, however many objects it refused before.
func TestSinkThatIsAwayGetsProbesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		p, stop := launch(sink, &letters{}, func(o *Options) {
			o.MaxBytes = 64 << 20
			o.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
			o.Limits = sinks.Limits{MaxRecords: 100, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond, Concurrency: 8, Timeout: 10 * time.Second}
		})
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
		time.Sleep(20 * time.Second) // what was under way comes back, and the circuit breaker opens
		sink.mu.Lock()
		before := sink.calls
		sink.mu.Unlock()
		for n := range 50 * 60 {
			mustTake(t, p, change(t, fmt.Sprint("late-", n), 20_000+n))
			time.Sleep(20 * time.Millisecond)
		}
		sink.mu.Lock()
		defer sink.mu.Unlock()
		if got := sink.calls - before; got > 60 {
			t.Errorf("%d calls in a minute, want about 40 probes", got)
		}
	})
}

// Large objects that the sink refuses leave room for the others, also when the backlog has spilled, and after a restart: what
// waits for its backoff is kept in the log only.
func TestLargeRefusedObjectsLeaveRoom(t *testing.T) {
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart ", restart), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: refuse, away: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				b := newLogbook()
				const memory, bad, good = 640 << 10, 60, 3000
				adjust := func(o *Options) {
					spilling(b, memory, 1<<30)(o)
					o.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
					o.Limits = sinks.Limits{MaxRecords: 100, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond, Concurrency: 8, Timeout: 10 * time.Second}
				}
				p, stop := launch(sink, &letters{}, adjust)
				endCommits := b.every(p)
				for n := range bad {
					mustTake(t, p, largeChange(t, fmt.Sprint("bad-", n), n+1, 9000))
				}
				for n := range good {
					mustTake(t, p, change(t, fmt.Sprint("good-", n), 10_000+n))
				}
				if restart {
					endCommits()
					stop()
					b.commit(p)
					p, stop = launch(sink, &letters{}, adjust)
					endCommits = b.every(p)
				}
				sink.mu.Lock()
				sink.away = false
				sink.mu.Unlock()
				time.Sleep(10 * time.Second)
				sink.mu.Lock()
				if len(sink.took) < good {
					t.Errorf("%d of %d good changes arrived; %+v", len(sink.took), good, p.Stats())
				}
				sink.bad = func(context.Context) error { return nil }
				sink.mu.Unlock()
				time.Sleep(time.Minute)
				endCommits()
				settled(t, p, b)
				stop()
				if len(sink.took) != good+bad {
					t.Errorf("%d of %d changes arrived", len(sink.took), good+bad)
				}
			})
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

// A sink that goes away in the middle of a load gets what was under way, the first probes, and then one in a second and a half:
// calls that fail beside the last successes do not make it look like one that refuses some objects only.
func TestOutageBeginsWithFewCalls(t *testing.T) {
	for round := range 20 {
		synctest.Test(t, func(t *testing.T) {
			sink := &tenants{bad: refuse, took: map[string]time.Time{}, latency: time.Duration(1+round) * time.Millisecond, spread: true}
			p, stop := launch(sink, &letters{}, func(o *Options) {
				o.MaxBytes = 64 << 20
				o.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
				o.Limits = sinks.Limits{MaxRecords: 1, MaxBytes: 1 << 20, Concurrency: 8, Timeout: 10 * time.Second}
			})
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
			if got := sink.calls - began; got > 25+20 {
				t.Errorf("%d calls in 20 s, want at most 45", got)
			}
		})
	}
}
