package flow

import (
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"testing"
	"time"
)

// The scenarios are the specification: what good changes wait beside what a sink refuses, hangs on or limits. "Others" are the good changes,
// 50 a second in ten namespaces, unless the scenario says otherwise. Times are seconds.

// bounds of how long good changes wait, at the 99th percentile and at most; 0 is no bound.
type bounds struct{ p99, max float64 }

func (b bounds) check(t *testing.T, who string, f figures) {
	t.Helper()
	t.Logf("%-22s %v", who, f)
	if f.n == 0 {
		t.Errorf("%s: nothing was added", who)
	}
	if b.p99 > 0 && f.p99 > b.p99 || b.max > 0 && f.max > b.max {
		t.Errorf("%s wait %v; want p99 at most %v, max %v", who, f, b.p99, b.max)
	}
}

const forever = math.MaxFloat64

// goods are the good changes of ten namespaces.
func goods(k int) (flow, name string, bad bool) {
	return fmt.Sprint("good", k%10), fmt.Sprint(k), false
}

// of returns good or bad changes of ever new objects of one namespace.
func of(flow string, bad bool) func(k int) (string, string, bool) {
	return func(k int) (string, string, bool) { return flow, fmt.Sprint("new", bad, k), bad }
}

// namespaces adds objects to so many namespaces, so many seconds apart in each.
func (p *sim) namespaces(n, objects int, apart float64) {
	for k := range n {
		p.burst(fmt.Sprint("bad", k), objects, true, 0, apart)
	}
}

var (
	refusal = Result{Verdict: Failed}
	invalid = Result{Verdict: Refused}
)

func limited(after float64) Result { return Result{Verdict: Failed, RetryAfter: seconds(after)} }

// both are sinks that fail a call as a whole, or record by record.
func both(took float64, result Result) map[string]sink {
	return map[string]sink{"whole call": whole(isBad, took, result), "each record": each(isBad, took, result)}
}

func TestScenarios(t *testing.T) {
	for _, c := range []struct {
		name  string
		sinks map[string]sink
		setup func(p *sim)
		// until is how long it takes, and the others come until 40 s before.
		until float64
		// onset are the bounds for what is added in the first seconds, and then those for what is added later.
		first       float64
		onset, then bounds
		also        func(t *testing.T, p *sim)
	}{
		{
			name: "900 objects of one namespace refused", sinks: both(quick, refusal), until: 120, then: bounds{5, 12},
			setup: func(p *sim) { p.burst("bad", 900, true, 0, 1e-4) },
		},
		{
			name: "900 refused, and good changes in the same namespace", sinks: both(quick, refusal), until: 120, then: bounds{5, 12},
			setup: func(p *sim) {
				p.burst("mixed", 900, true, 0, 1e-4)
				p.feed(20, 0.01, 80, of("mixed", false))
			},
			also: func(t *testing.T, p *sim) {
				bounds{15, 15}.check(t, "his good changes", p.figures("mixed", 0, forever))
			},
		},
		{
			name: "the same, and new objects refused all the time", sinks: both(quick, refusal), until: 120, then: bounds{5, 12},
			setup: func(p *sim) {
				p.burst("mixed", 900, true, 0, 1e-4)
				p.feed(20, 1, 80, of("mixed", true))
				p.feed(20, 1, 80, of("mixed", false))
			},
			also: func(t *testing.T, p *sim) {
				want := bounds{15, 0}
				if p.s.options.Calls == 4 {
					want.p99 = 20
				}
				want.check(t, "his good changes", p.figures("mixed", 0, forever))
			},
		},
		{
			name: "40 namespaces refused", sinks: both(quick, refusal), until: 120, then: bounds{5, 15},
			setup: func(p *sim) { p.namespaces(40, 50, 1e-4) },
		},
		{
			name: "300 namespaces refused", sinks: both(quick, refusal), until: 120, then: bounds{5, 15},
			setup: func(p *sim) { p.namespaces(300, 5, 0.3) },
		},
		{
			name: "300 namespaces refused, all at once", sinks: both(quick, refusal), until: 120, then: bounds{5, 15},
			setup: func(p *sim) { p.namespaces(300, 5, 0) },
		},
		{
			name: "300 namespaces refused, and new objects of them all the time", sinks: both(quick, refusal), until: 120, then: bounds{5, 15},
			setup: func(p *sim) {
				p.feed(50, 0, 80, func(k int) (string, string, bool) { return fmt.Sprint("bad", k%300), fmt.Sprint(k), true })
			},
		},
		{
			name: "twenty new namespaces refused each second", sinks: both(quick, refusal), until: 120, then: bounds{12, 15},
			setup: func(p *sim) {
				p.feed(20, 0, 80, func(k int) (string, string, bool) { return fmt.Sprint("bad", k), "x", true })
			},
		},
		{
			name: "a namespace hangs", sinks: both(10, refusal), until: 200, first: 25, then: bounds{5, 12},
			setup: func(p *sim) { p.burst("bad", 300, true, 0, 0.01) },
		},
		{
			name: "a namespace hangs that worked before", sinks: both(10, refusal), until: 200, first: 55, onset: bounds{25, 25}, then: bounds{5, 12},
			setup: func(p *sim) {
				p.feed(20, 0, 30, of("bad", false))
				p.feed(20, 30, 160, of("bad", true))
			},
		},
		{
			name: "five namespaces hang, and a new one every 10 s", sinks: both(10, refusal), until: 240, first: 60, then: bounds{15, 0},
			setup: func(p *sim) {
				p.namespaces(5, 100, 0.01)
				for k := range 20 {
					p.burst(fmt.Sprint("badnew", k), 20, true, 10*float64(k)+5, 0.5)
				}
			},
		},
		{
			name: "five namespaces hang that worked before", sinks: both(10, refusal), until: 240, first: 90, then: bounds{5, 0},
			setup: func(p *sim) {
				for k := range 5 {
					p.feed(10, 0, 30, of(fmt.Sprint("bad", k), false))
					p.feed(10, 30, 160, of(fmt.Sprint("bad", k), true))
				}
			},
		},
		{
			name: "Retry-After 60 for one tenant", sinks: both(quick, limited(60)), until: 160, then: bounds{5, 5},
			setup: func(p *sim) { p.burst("bad", 300, true, 0, 1e-4) },
		},
		{
			name: "Retry-After 60 for 50 tenants", sinks: both(quick, limited(60)), until: 160, then: bounds{5, 5},
			setup: func(p *sim) { p.namespaces(50, 50, 1e-4) },
		},
		{
			name: "ever new objects of a tenant refused for good", sinks: both(quick, invalid), until: 120, then: bounds{5, 5},
			setup: func(p *sim) { p.feed(20, 0, 80, of("bad", true)) },
			also: func(t *testing.T, p *sim) {
				if len(p.letters) < 1600 || p.waiting > 0 {
					t.Errorf("%d letters, %d wait", len(p.letters), p.waiting)
				}
			},
		},
	} {
		for kind, sink := range c.sinks {
			for _, calls := range []int{8, 4} {
				for _, records := range []int{100, 1} {
					t.Run(fmt.Sprintf("%s/%s/%d calls of %d", c.name, kind, calls, records), func(t *testing.T) {
						p := newSim(t, newWorld(1), nil, calls, records, 0, sink)
						c.setup(p)
						p.feed(50, 1, c.until-40, goods)
						p.w.run(c.until)
						if c.first > 1 {
							c.onset.check(t, "others, onset", p.figures("good", 1, c.first))
						}
						c.then.check(t, "others", p.figures("good", max(1, c.first), forever))
						if c.also != nil {
							c.also(t, p)
						}
					})
				}
			}
		}
	}
}

// each4 runs a test for each number of calls and size of batches.
func each4(t *testing.T, run func(t *testing.T, calls, records int)) {
	for _, calls := range []int{8, 4} {
		for _, records := range []int{100, 1} {
			t.Run(fmt.Sprintf("%d calls of %d", calls, records), func(t *testing.T) { run(t, calls, records) })
		}
	}
}

// A tenant's objects are refused for good, all the time, while the only good change comes every 5 s: perhaps the sink is misconfigured.
func TestRefusedForGoodInAQuietCluster(t *testing.T) {
	each4(t, func(t *testing.T, calls, records int) {
		p := newSim(t, newWorld(1), nil, calls, records, 0, whole(isBad, quick, invalid))
		p.feed(20, 0, 300, of("bad", true))
		p.feed(0.2, 1, 340, goods)
		most := 0
		for k := range 300 {
			p.w.at(epoch.Add(seconds(float64(k))), func() { most = max(most, p.waiting) })
		}
		p.w.run(350)
		bounds{5, 5}.check(t, "others", p.figures("good", 1, forever))
		var waited []float64
		for _, l := range p.letters {
			waited = append(waited, l.took)
		}
		slices.Sort(waited)
		t.Logf("%d letters, the last after %v; %d wait, %d at most", len(waited), waited[len(waited)-1], p.waiting, most)
		if len(p.letters) < 5900 || waited[len(waited)-1] > 60 {
			t.Errorf("%d letters", len(p.letters))
		}
	})
}

// A tenant's objects are refused, while the only good change comes every 5 s: the sink counts as away nearly all the time.
func TestRefusedInAQuietCluster(t *testing.T) {
	each4(t, func(t *testing.T, calls, records int) {
		p := newSim(t, newWorld(1), nil, calls, records, 0, whole(isBad, quick, refusal))
		p.burst("bad", 900, true, 0, 1e-4)
		p.feed(0.2, 1, 300, goods)
		p.w.run(350)
		bounds{5, 5}.check(t, "others", p.figures("good", 1, forever))
	})
}

// Where nothing is sent but one record, and it fails, the sink counts as away, unless something was delivered since it first failed.
func TestOneRecord(t *testing.T) {
	for _, good := range []bool{false, true} {
		p := newSim(t, newWorld(1), nil, 4, 100, 0, whole(isBad, quick, refusal))
		p.burst("bad", 1, true, 0, 0)
		if good {
			p.burst("good", 1, false, 0, 0)
		}
		p.w.run(15)
		if away := p.s.Away(p.w.now); away == good {
			t.Errorf("after 15 s: the sink is away: %v, but something was delivered: %v", away, good)
		}
		p.w.run(3600)
		if away := p.s.Away(p.w.now); away == good {
			t.Errorf("after an hour: the sink is away: %v, but something was delivered: %v", away, good)
		}
	}
}

// If nothing is delivered, at most ten records are given up.
func TestEverythingRefusedForGood(t *testing.T) {
	p := newSim(t, newWorld(1), nil, 4, 100, 0, whole(func(*Item) bool { return true }, quick, invalid))
	p.feed(20, 0, 300, goods)
	p.w.run(350)
	if len(p.letters) > 10 {
		t.Errorf("%d letters", len(p.letters))
	}
}

func TestSinkAway(t *testing.T) {
	for _, c := range []struct {
		name string
		took float64
		back float64 // how long after its return all is delivered at full speed
	}{{"refuses", quick, 2}, {"hangs", 10, 10}} {
		t.Run(c.name, func(t *testing.T) {
			each4(t, func(t *testing.T, calls, records int) {
				w := newWorld(1)
				away := func(*Item) bool { return w.seconds() >= 20 && w.seconds() < 320 }
				p := newSim(t, w, nil, calls, records, 3, whole(away, c.took, refusal))
				p.feed(50, 1, 400, goods)
				p.w.run(440)
				first, last := 0.0, 0.0 // delivery behind the outage
				for _, x := range p.waits {
					if at := x.at + x.took; at > 320 && x.at < 320 {
						last = max(last, at)
						if first == 0 || at < first {
							first = at
						}
					}
				}
				n := 0
				for _, at := range p.calls {
					if at > 20 && at < 30+c.took {
						n++
					}
				}
				rate := p.rate(30+c.took, 320)
				t.Logf("first %.1f s after its return, last %.1f; calls in the first 10 s %d, then %.2f/s; %d letters", first-320, last-320, n, rate, len(p.letters))
				work := 15000 / float64(calls*records) * (quick + 0.005)
				if first-320 > c.back || last-320 > c.back+2+2*work || rate > 1 || len(p.letters) > 0 {
					t.Error("out of bounds")
				}
			})
		})
	}
}

// Several pipelines share a sink that hangs on namespaces which all of them have.
func TestSharedSink(t *testing.T) {
	for _, c := range []struct {
		pipelines, namespaces int
		first                 float64
		onset, then           bounds
	}{
		{2, 1, 25, bounds{0, 25}, bounds{5, 0}},
		{2, 5, 60, bounds{0, 40}, bounds{15, 0}},
		{3, 1, 25, bounds{0, 25}, bounds{5, 0}},
	} {
		each4(t, func(t *testing.T, calls, records int) {
			w, slots := newWorld(1), NewSlots(calls)
			var all []*sim
			for range c.pipelines {
				p := newSim(t, w, slots, calls, records, 0, whole(isBad, 10, refusal))
				for k := range c.namespaces {
					p.feed(2, 5, 160, of(fmt.Sprint("bad", k), true))
				}
				p.feed(50, 1, 160, goods)
				all = append(all, p)
			}
			w.run(200)
			for _, p := range all {
				c.onset.check(t, fmt.Sprint(c.pipelines, " pipelines, others, onset"), p.figures("good", 1, c.first))
				c.then.check(t, fmt.Sprint(c.pipelines, " pipelines, others"), p.figures("good", c.first, forever))
			}
		})
	}
}

// Three pipelines share a sink that hangs on one namespace from the start, and have one other. What one of them delivered shows the others that
// it may be sent.
func TestSharedSinkFromTheStart(t *testing.T) {
	each4(t, func(t *testing.T, calls, records int) {
		w, slots := newWorld(1), NewSlots(calls)
		var all []*sim
		for range 3 {
			p := newSim(t, w, slots, calls, records, 0, whole(isBad, 10, refusal))
			p.feed(50, 0, 20, of("bad", true))
			p.feed(1, 20, 120, of("bad", true))
			p.feed(50, 0, 120, of("good", false))
			all = append(all, p)
		}
		w.run(160)
		for _, p := range all {
			bounds{0, 25}.check(t, "others, onset", p.figures("good", 0, 25))
			bounds{5, 5}.check(t, "others", p.figures("good", 25, forever))
		}
	})
}

// One of three brokers hangs. The sink fails the records of a broker that timed out at once, but for one trial at a time.
func TestOneBrokerHangs(t *testing.T) {
	led := func(i *Item) bool { return crc32.ChecksumIEEE([]byte(i.Ref.Path()))%3 == 0 }
	for _, flows := range []int{1, 40, 300} {
		for _, objects := range []int{5000, 20000} {
			t.Run(fmt.Sprintf("%d namespaces, %d objects", flows, objects), func(t *testing.T) {
				const rate = 2000
				trial, until := false, 0.0
				p := newSim(t, newWorld(1), nil, 4, 500, 0, func(w *world, items []*Item) ([]Result, float64) {
					results, took := make([]Result, len(items)), quick
					for n, i := range items {
						if w.seconds() > 10 && led(i) {
							results[n] = refusal
						}
					}
					if slices.Contains(results, refusal) && !trial && w.seconds() > until {
						trial, took = true, 10
						w.in(10, func() { trial, until = false, w.seconds()+5 })
					}
					return results, took
				})
				p.feed(rate, 0, 60, func(k int) (string, string, bool) {
					flow, name := fmt.Sprint("ns", k*7919%objects%flows), fmt.Sprint(k*7919%objects)
					return flow, name, false
				})
				p.w.run(60)
				share := p.delivered("ns", 20, 60) / (rate * 2 / 3)
				t.Logf("%.0f %% of what the others lead, %.0f calls/s", 100*share, p.rate(20, 60))
				if share < 0.9 {
					t.Error("too few")
				}
			})
		}
	}
}

// One call in five fails at random.
func TestRandomFailures(t *testing.T) {
	for _, c := range []struct{ flows, records, rate int }{{1, 100, 2000}, {30, 100, 2000}, {300, 100, 2000}, {3000, 100, 2000}, {1, 1, 200}, {300, 1, 200}} {
		t.Run(fmt.Sprintf("%d namespaces, %d a batch", c.flows, c.records), func(t *testing.T) {
			w := newWorld(1)
			p := newSim(t, w, nil, 8, c.records, 0, func(w *world, items []*Item) ([]Result, float64) {
				if w.random.Float64() < 0.2 {
					return slices.Repeat([]Result{refusal}, len(items)), 0.02
				}
				return make([]Result, len(items)), 0.02
			})
			p.feed(float64(c.rate), 0, 60, func(k int) (string, string, bool) {
				return fmt.Sprint("ns", k*7919%5000%c.flows), fmt.Sprint(k * 7919 % 5000), false
			})
			w.run(60)
			share := p.delivered("ns", 10, 60) / float64(c.rate)
			t.Logf("%.0f %%, %v, %d wait, %.0f calls/s", 100*share, p.figures("ns", 10, 50), p.waiting, p.rate(10, 60))
			if share < 0.8 {
				t.Error("too few")
			}
		})
	}
}

// A sink limits the rate of all calls to 20 a second; 1,000 changes come in a second.
func TestLimitForAll(t *testing.T) {
	for _, c := range []struct {
		flows int
		least float64
	}{{1, 0.9}, {20, 0.9}, {300, 0.7}, {3000, 0.1}} {
		t.Run(fmt.Sprint(c.flows, " namespaces"), func(t *testing.T) {
			w := newWorld(1)
			tokens, last := 20.0, 0.0
			p := newSim(t, w, nil, 8, 100, 0, func(w *world, items []*Item) ([]Result, float64) {
				tokens, last = min(20, tokens+(w.seconds()-last)*20), w.seconds()
				if tokens < 1 {
					return slices.Repeat([]Result{limited(1)}, len(items)), 0.02
				}
				tokens--
				return make([]Result, len(items)), 0.02
			})
			p.feed(1000, 0, 60, func(k int) (string, string, bool) {
				return fmt.Sprint("ns", k*7919%5000%c.flows), fmt.Sprint(k * 7919 % 5000), false
			})
			w.run(60)
			share := p.delivered("ns", 10, 60) / 1000
			t.Logf("%.0f %%, %v, %d wait, %.0f calls/s", 100*share, p.figures("ns", 10, 50), p.waiting, p.rate(10, 60))
			if share < c.least {
				t.Error("too few")
			}
		})
	}
}

// A tenant's objects hang once each, and then pass.
func TestObjectsHangOnce(t *testing.T) {
	for _, calls := range []int{8, 4} {
		for _, tenants := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d calls, %d tenants", calls, tenants), func(t *testing.T) {
				w := newWorld(1)
				seen := map[string]bool{}
				p := newSim(t, w, nil, calls, 100, 0, func(_ *world, items []*Item) ([]Result, float64) {
					hangs := false
					for _, i := range items {
						key := i.Flow + i.Ref.Name
						hangs = hangs || isBad(i) && !seen[key]
						seen[key] = true
					}
					if hangs {
						return slices.Repeat([]Result{refusal}, len(items)), 10
					}
					return make([]Result, len(items)), quick
				})
				n := 0
				var tick func()
				tick = func() {
					for k := range tenants {
						f := p.s.flows[fmt.Sprint("bad", k)]
						if f == nil || f.objects == 0 && !f.troubled(w.now) {
							for j := range 8 {
								n++
								name := fmt.Sprint(n)
								w.in(0.02*float64(j), func() { p.add(fmt.Sprint("bad", k), name, true); p.pump() })
							}
						}
					}
					w.in(0.5, tick)
				}
				w.in(5, tick)
				p.feed(50, 1, 260, goods)
				w.run(300)
				bounds{15, 0}.check(t, "others", p.figures("good", 1, forever))
			})
		}
	}
}

// A namespace with one record that is refused is not held up by others on which the sink hangs.
func TestBusyNamespaceIsNotStarved(t *testing.T) {
	w := newWorld(1)
	poison := func(i *Item) bool { return i.Ref.Name == "poison" }
	p := newSim(t, w, nil, 8, 100, 0, func(_ *world, items []*Item) ([]Result, float64) {
		if slices.ContainsFunc(items, isBad) {
			return slices.Repeat([]Result{refusal}, len(items)), 10
		}
		if slices.ContainsFunc(items, poison) {
			return slices.Repeat([]Result{refusal}, len(items)), quick
		}
		return make([]Result, len(items)), quick
	})
	w.at(epoch.Add(seconds(1)), func() { p.add("busy", "poison", false) })
	p.feed(2, 0, 560, of("busy", false))
	p.feed(2, 0, 560, of("other", false))
	for k := range 3 {
		p.burst(fmt.Sprint("hangs", k), 200, true, 200, 0.01)
	}
	w.run(600)
	bounds{15, 0}.check(t, "busy", p.figures("busy", 60, forever))
	bounds{5, 0}.check(t, "other", p.figures("other", 60, forever))
}

func TestManyNamespaces(t *testing.T) {
	const n = 100_000
	s := New(Options{Records: 100, Calls: 8, Share: NewSlots(8).Share(nil), Initial: time.Second, Max: time.Second, Random: func() float64 { return 0 }})
	start := time.Now()
	for k := range n {
		flow := fmt.Sprint("ns", k)
		s.Add(&Item{Ref: ref(flow, "x"), Flow: flow}, epoch)
	}
	got := 0
	for now := epoch; ; now = now.Add(time.Millisecond) {
		b, _ := s.Next(now, all)
		if b == nil {
			break
		}
		got += len(b.Items)
		s.Judge(b, make([]Result, len(b.Items)), time.Millisecond, now)
		s.Done(b, now)
	}
	took := time.Since(start)
	t.Logf("%v a record", took/n)
	if took/n > 100*time.Microsecond { // it is 5 µs where nothing else runs
		t.Error("too slow")
	}
	if got != n || len(s.flows) > maxIdle {
		t.Errorf("%d delivered, %d flows are remembered", got, len(s.flows))
	}
}
