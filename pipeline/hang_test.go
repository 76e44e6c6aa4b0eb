package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/sinks"
)

// rejecting refuses records of objects named rejected-… for good, of those named failing-… each time, and the first call with the object
// named once.
type rejecting struct {
	*tenants
	once *atomic.Bool
}

func (s rejecting) Deliver(ctx context.Context, batch []sinks.Record) error {
	if strings.HasSuffix(batch[0].Key, "/once") && s.once.CompareAndSwap(false, true) {
		time.Sleep(s.latency)
		return errDown
	}
	if strings.Contains(batch[0].Key, "/rejected-") {
		time.Sleep(s.latency)
		return sinks.Permanent(sinks.ReasonRejected, errDown)
	}
	if strings.Contains(batch[0].Key, "/failing-") {
		time.Sleep(s.latency)
		return errDown
	}
	return s.tenants.Deliver(ctx, batch)
}

// The sink hangs on the records of one namespace, which come all the time, and refuses one of another from time to time, or was away:
// the others of that namespace do not wait for the calls that hang.
func TestNamespaceThatFailsBesideOneThatHangs(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		records int
		// rejects, failsOnce and away are what happens to the other namespace.
		rejects, failsOnce, away bool
		size                     int // of the records that hang
		latency                  time.Duration
	}{
		{name: "a record is refused for good by a slow sink", records: 1, rejects: true, latency: 45 * time.Millisecond},
		{name: "a record is refused for good", records: 1, rejects: true},
		{name: "a record fails once", records: 1, failsOnce: true},
		{name: "the sink was away", records: 1, away: true},
		{name: "a record of a batch is refused for good", records: 100, rejects: true},
		{name: "the sink was away, with batches", records: 100, away: true},
		{name: "large records", records: 1, size: 1400 << 10},
		{name: "large records, and one fails once", records: 1, size: 1400 << 10, failsOnce: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: hang, took: map[string]time.Time{}, latency: cmp.Or(test.latency, 5*time.Millisecond)}
				p, stop := launch(rejecting{sink, new(atomic.Bool)}, &letters{}, func(o *Options) {
					tenantLimits(test.records, 8)(o)
					if test.size > 0 {
						o.MaxBytes = 8 << 20
					}
				})
				defer stop()
				set := func(away bool) {
					sink.mu.Lock()
					sink.away = away
					sink.mu.Unlock()
				}
				sent := map[string]time.Time{}
				bad := 0
				goOn := func(d time.Duration, counts bool) {
					for begun, good := time.Now(), 0; time.Since(begun) < d; time.Sleep(10 * time.Millisecond) {
						passed := time.Since(begun)
						if test.size > 0 && bad%200 == 0 && bad < 1000 {
							mustTake(t, p, inNamespace(t, largeChange(t, fmt.Sprint("bad-", bad), bad+1, test.size), "tenant"))
						} else if test.size == 0 && bad%50 == 0 {
							mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", bad), bad+1))
						}
						if test.rejects && bad%3000 == 2500 {
							mustTake(t, p, change(t, fmt.Sprint("rejected-", bad), bad+1))
						}
						if test.failsOnce && bad%3000 == 2500 {
							set(true)
						} else if test.failsOnce && bad%3000 == 2503 {
							set(false)
						}
						for ; float64(good) < passed.Seconds()*50; good++ {
							name := fmt.Sprint("good-", len(sent))
							if sent[name] = time.Now(); !counts {
								delete(sent, name)
								name = fmt.Sprint("early-", bad)
							}
							mustTake(t, p, change(t, name, 10_000+bad))
						}
						bad++
					}
				}
				goOn(30*time.Second, false) // until it has become clear on whose records it hangs
				if test.away {
					set(true)
					goOn(time.Minute, false)
					set(false)
					goOn(30*time.Second, false)
				}
				goOn(2*time.Minute, true)
				time.Sleep(15 * time.Second)
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > 5*time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
				if test.away {
					early := 0
					sink.mu.Lock()
					for name := range sink.took {
						if strings.HasPrefix(name, "early-") {
							early++
						}
					}
					sink.mu.Unlock()
					if s := p.Stats(); s.Waiting > uint64(bad/50+50) {
						t.Errorf("%d wait, %d of before arrived", s.Waiting, early)
					}
				}
			})
		})
	}
}

// A small record that failed once is read back beside many large ones of another namespace, on which the sink hangs.
func TestComeBackBesideOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &tenants{bad: hang, took: map[string]time.Time{}, latency: 5 * time.Millisecond}, newLogbook()
		failed := new(atomic.Bool)
		p, stop := launch(rejecting{sink, failed}, &letters{}, func(o *Options) {
			tenantLimits(1, 8)(o)
			spilling(b, 16<<20, 1<<30)(o)
		})
		defer stop()
		good := 0
		goOn := func(d time.Duration) {
			for range d / (20 * time.Millisecond) {
				good++
				mustTake(t, p, change(t, fmt.Sprint("good-", good), good))
				b.commit(p)
				time.Sleep(20 * time.Millisecond)
			}
		}
		goOn(time.Second)
		for n := range 50 {
			mustTake(t, p, inNamespace(t, largeChange(t, fmt.Sprint("bad-", n), n+1, 200<<10), "tenant"))
		}
		goOn(3 * time.Minute)
		mustTake(t, p, change(t, "once", 100_000))
		goOn(10 * time.Second)
		sink.mu.Lock()
		_, took := sink.took["once"]
		sink.mu.Unlock()
		if !took || !failed.Load() {
			t.Errorf("what failed once (%t) waits: %+v", failed.Load(), p.Stats())
		}
	})
}

// A namespace goes on while the memory is full of records of another on which the sink hangs, also with an object that fails, or beside
// namespaces in the log on which it hangs too.
func TestNamespaceBesideAFullMemory(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		calls     int
		pipelines int
		failing   bool     // one object of it
		pause     int      // seconds between two changes of it; 0 for 50 in a second
		hang      []string // the namespaces in the log
	}{
		{name: "an object fails", calls: 8, pipelines: 1, failing: true},
		{name: "an object fails, with few calls", calls: 4, pipelines: 1, failing: true},
		{name: "an object fails, and changes are few", calls: 8, pipelines: 1, failing: true, pause: 100},
		{name: "others in the log hang", calls: 4, pipelines: 1, hang: []string{"x-1", "x-2"}},
		{name: "another in the log hangs, with three calls", calls: 3, pipelines: 1, hang: []string{"x-1"}},
		{name: "two pipelines", calls: 8, pipelines: 2, hang: []string{"x-1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: hang, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				slots := sched.NewSlots(test.calls)
				var all []*Pipeline
				var books []*logbook
				for range test.pipelines {
					b := newLogbook()
					p, stop := launch(rejecting{sink, new(atomic.Bool)}, &letters{}, func(o *Options) {
						tenantLimits(1, test.calls)(o)
						spilling(b, 2<<20, 1<<30)(o)
						o.Slots = slots
					})
					defer stop()
					all, books = append(all, p), append(books, b)
				}
				sent, taken := map[string]time.Time{}, 0
				each := func(take func(of int) *delta.Delta) {
					for of, p := range all {
						taken++
						mustTake(t, p, take(of))
						books[of].commit(p)
					}
				}
				goOn := func(d time.Duration, counts bool) {
					pause := max(20*time.Millisecond, time.Duration(test.pause)*time.Second)
					for range d / pause {
						each(func(int) *delta.Delta {
							name := fmt.Sprint("good-", taken)
							if counts {
								sent[name] = time.Now()
							}
							return change(t, name, taken)
						})
						time.Sleep(pause)
					}
				}
				each(func(int) *delta.Delta { return change(t, "good", taken) })
				time.Sleep(time.Second)
				if test.failing {
					each(func(int) *delta.Delta { return change(t, "failing-1", taken) })
					time.Sleep(10 * time.Second)
				}
				for range 50 {
					each(func(int) *delta.Delta {
						return inNamespace(t, largeChange(t, fmt.Sprint("bad-", taken), taken, 200<<10), "tenant")
					})
				}
				for _, namespace := range test.hang {
					for range 50 {
						each(func(int) *delta.Delta { return changeIn(t, namespace, fmt.Sprint("bad-", taken), taken) })
					}
				}
				goOn(100*time.Second, false)
				goOn(3*time.Minute+20*time.Second, true)
				time.Sleep(15 * time.Second)
				most := 5 * time.Second
				if test.pause > 0 { // a time-out, as docs/security.md has it: nothing of the namespace got through in the last minute
					most = all[0].options.Limits.Timeout + time.Second
				}
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > most {
					t.Errorf("the p99 of good changes is %v", p99)
				}
			})
		})
	}
}

// Of each call with some records on which a broker hangs the others are acknowledged at once. These do not wait for a call all the time.
func TestCallsThatHangInPart(t *testing.T) {
	for _, test := range []struct {
		name       string
		namespaces []string // of the records on which the sink hangs
		again      int      // how many objects there are, each of which changes again and again; 0 for any number
	}{
		{"a namespace", []string{"tenant"}, 0},
		{"its objects again", []string{"tenant"}, 120},
		{"two namespaces", []string{"tenant", "tenant-2"}, 0},
		{"the same namespace", []string{"shop"}, 120},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: hang, perRecord: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				p, stop := launch(sink, &letters{}, tenantLimits(500, 4))
				defer stop()
				goOn := func(d time.Duration) map[string]time.Time {
					sent := map[string]time.Time{}
					for begun := time.Now(); time.Since(begun) < d; time.Sleep(20 * time.Millisecond) {
						n := int(time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)) / (20 * time.Millisecond))
						if n%3 == 0 {
							name := fmt.Sprint("bad-", n)
							if test.again > 0 {
								name = fmt.Sprint("bad-", n%test.again)
							}
							for _, namespace := range test.namespaces {
								mustTake(t, p, changeIn(t, namespace, name, n+1))
							}
						}
						name := fmt.Sprint("good-", n)
						sent[name] = time.Now()
						mustTake(t, p, change(t, name, n+1))
					}
					return sent
				}
				goOn(30 * time.Second)
				sent := goOn(2 * time.Minute)
				time.Sleep(15 * time.Second)
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
			})
		})
	}
}

// A broker hangs on a third of the records of all namespaces. The sink fails these at once, as sinks/kafka does, but for one call in five seconds, which
// takes until its time-out. What others lead does not wait for that.
func TestOneBrokerHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var until time.Time // when the broker is tried again
		tried := false
		sink := &tenants{perRecord: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		sink.bad = func(ctx context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			if tried || time.Now().Before(until) {
				return sinks.Transient(sinks.ReasonTimeout, errDown)
			}
			tried = true
			mu.Unlock()
			err := hang(ctx)
			mu.Lock()
			tried, until = false, time.Now().Add(5*time.Second)
			return err
		}
		p, stop := launch(sink, &letters{}, tenantLimits(500, 4))
		defer stop()
		sent := map[string]time.Time{}
		const perSecond = 200
		for n := range perSecond * 60 {
			name := fmt.Sprint("good-", n)
			switch {
			case n%3 == 0:
				name = fmt.Sprint("bad-", n%3000)
			case n > perSecond*15:
				sent[name] = time.Now()
			}
			mustTake(t, p, changeIn(t, fmt.Sprint("team-", n%40), name, n+1))
			time.Sleep(time.Second / perSecond)
		}
		time.Sleep(30 * time.Second)
		late := 0
		sink.mu.Lock()
		defer sink.mu.Unlock()
		for name, at := range sent {
			if took, ok := sink.took[name]; !ok || took.Sub(at) > 2*time.Second {
				late++
			}
		}
		t.Logf("%d of %d good changes took longer than 2 s", late, len(sent))
		if late > len(sent)/10 {
			t.Errorf("%d of %d good changes took longer than 2 s", late, len(sent))
		}
	})
}

// A sink takes two seconds for each call, and now and then fails one record: that costs no calls.
func TestSlowSinkThatFailsARecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := sync.Map{}
		sink := &script{}
		sink.set(func(_ int, batch []sinks.Record) error {
			time.Sleep(2 * time.Second)
			errs := make([]error, len(batch))
			for n, record := range batch {
				if strings.HasSuffix(record.Key, "00") {
					if _, again := failed.LoadOrStore(record.Key, true); !again {
						errs[n] = errDown
					}
				}
			}
			return sinks.Result(errs)
		})
		p, stop := launch(sink, &letters{}, tenantLimits(500, 4))
		defer stop()
		for n := range 30 * 600 {
			mustTake(t, p, change(t, fmt.Sprint("o-", n), n+1))
			time.Sleep(time.Second / 600)
		}
		if s := p.Stats(); s.Waiting > 5000 {
			t.Errorf("%d wait", s.Waiting)
		}
	})
}

// Several pipelines share a sink that hangs on the records of one namespace, which each of them has: none waits for it.
func TestSharedSinkThatHangs(t *testing.T) {
	t.Parallel()
	for _, pipelines := range []int{1, 2, 3} {
		for _, test := range []struct {
			records, calls int
			namespace      string // of the records on which it hangs
			all            int    // how many there are, beside one more each second; or without these, as a broker that hangs
			perRecord      bool
			most           int // pipelines
		}{{1, 8, "tenant", 1000, false, 3}, {100, 4, "tenant", 1000, false, 3}, {100, 4, "shop", 100, true, 2}} {
			if pipelines > test.most {
				continue
			}
			t.Run(fmt.Sprintf("%d: %+v", pipelines, test), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					sink := &tenants{bad: hang, perRecord: test.perRecord, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
					slots := sched.NewSlots(test.calls)
					var all []*Pipeline
					for range pipelines {
						p, stop := launch(sink, &letters{}, func(o *Options) {
							tenantLimits(test.records, test.calls)(o)
							o.Slots = slots
						})
						defer stop()
						all = append(all, p)
					}
					sent := map[string]time.Time{}
					for n := range 2 * 60 * 50 {
						for of, p := range all {
							if n < test.all || n%50 == 0 && !test.perRecord {
								mustTake(t, p, changeIn(t, test.namespace, fmt.Sprint("bad-", n), n+1))
							}
							name := fmt.Sprint("good-", of, "-", n)
							if n > 25*50 { // mixed batches hang before
								sent[name] = time.Now()
							}
							mustTake(t, p, change(t, name, n+1))
						}
						time.Sleep(20 * time.Millisecond)
					}
					time.Sleep(30 * time.Second)
					waits := sink.waits(t, sent)
					if p99 := waits[len(waits)*99/100]; p99 > 5*time.Second {
						t.Errorf("the p99 of good changes is %v", p99)
					}
				})
			})
		}
	}
}
