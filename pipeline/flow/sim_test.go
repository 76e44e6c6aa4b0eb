package flow

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file simulates a sink and pipelines in virtual time, with the scheduler itself. The scenarios are in scenarios_test.go.

// world is the virtual time, and what will happen.
type world struct {
	now    time.Time
	events eventHeap
	n      int
	random *rand.Rand
}

type event struct {
	at time.Time
	n  int
	do func()
}

type eventHeap []event

func (h eventHeap) Len() int { return len(h) }
func (h eventHeap) Less(i, j int) bool {
	return h[i].at.Before(h[j].at) || h[i].at.Equal(h[j].at) && h[i].n < h[j].n
}
func (h eventHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(e any)   { *h = append(*h, e.(event)) }
func (h *eventHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	*h = (*h)[:last]
	return e
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(seed uint64) *world {
	return &world{now: epoch, random: rand.New(rand.NewPCG(seed, 1))}
}

// seconds since the start.
func (w *world) seconds() float64 { return w.now.Sub(epoch).Seconds() }

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func (w *world) at(at time.Time, do func()) {
	w.n++
	heap.Push(&w.events, event{at, w.n, do})
}

func (w *world) in(s float64, do func()) { w.at(w.now.Add(seconds(s)), do) }

func (w *world) run(until float64) {
	end := epoch.Add(seconds(until))
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		e := heap.Pop(&w.events).(event)
		w.now = e.at
		e.do()
	}
	w.now = end
}

// sim is one pipeline.
type sim struct {
	t        *testing.T
	w        *world
	s        *Scheduler
	records  int
	sink     sink
	linger   time.Duration
	wakeAt   time.Time
	lingers  bool
	calls    []float64 // when each began
	sent     int
	waits    []wait
	letters  []wait
	waiting  int
	held     map[delta.Ref]bool
	last     map[delta.Ref]int
	versions map[delta.Ref]int
}

// simRecord is what an item stands for.
type simRecord struct {
	bad     bool
	at      float64 // when it was added
	version int
}

type wait struct {
	flow, name string
	bad        bool
	at, took   float64
}

// sink answers a call: what becomes of each item, and after how many seconds.
type sink func(w *world, items []*Item) (results []Result, took float64)

func newSim(t *testing.T, w *world, slots *Slots, calls, records int, attempts int, sink sink) *sim {
	p := &sim{t: t, w: w, records: records, sink: sink, linger: 5 * time.Millisecond, held: map[delta.Ref]bool{}, last: map[delta.Ref]int{}, versions: map[delta.Ref]int{}}
	if slots == nil {
		slots = NewSlots(calls)
	}
	p.s = New(Options{
		Records: records, Calls: calls, Initial: 100 * time.Millisecond, Max: 30 * time.Second, Attempts: attempts, Random: w.random.Float64,
		Share: slots.Share(func() { w.at(w.now, p.pump) }),
	})
	return p
}

func (p *sim) add(flow, name string, bad bool) {
	ref := delta.Ref{Namespace: flow, Name: name}
	p.versions[ref]++
	p.waiting++
	p.s.Add(&Item{Ref: ref, Flow: flow, Value: &simRecord{bad, p.w.seconds(), p.versions[ref]}}, p.w.now)
}

// burst adds n objects from a time on, so many seconds apart.
func (p *sim) burst(flow string, n int, bad bool, from, apart float64) {
	for k := range n {
		p.w.at(epoch.Add(seconds(from+float64(k)*apart)), func() { p.add(flow, fmt.Sprint("burst", k), bad); p.pump() })
	}
}

// feed adds records at a rate.
func (p *sim) feed(rate, from, to float64, name func(k int) (flow, name string, bad bool)) {
	k := 0
	var tick func()
	tick = func() {
		for due := int((p.w.seconds()-from)*rate) + 1; k < due; k++ {
			flow, name, bad := name(k)
			p.add(flow, name, bad)
		}
		p.pump()
		if p.w.seconds()+max(0.01, 1/rate) < to {
			p.w.in(max(0.01, 1/rate), tick)
		}
	}
	p.w.at(epoch.Add(seconds(from)), tick)
}

func all(*Item) bool { return true }

// pump sends what may be sent.
func (p *sim) pump() {
	for !p.lingers {
		b, wake := p.s.Next(p.w.now, all)
		if b == nil {
			if !wake.IsZero() && (p.wakeAt.IsZero() || wake.Before(p.wakeAt)) {
				p.wakeAt = wake
				p.w.at(wake, func() {
					if p.wakeAt.Equal(wake) {
						p.wakeAt = time.Time{}
					}
					p.pump()
				})
			}
			return
		}
		if p.s.Fill(b, p.w.now, all) {
			p.send(b)
			continue
		}
		p.lingers = true
		p.w.in(p.linger.Seconds(), func() {
			p.lingers = false
			p.s.Fill(b, p.w.now, all)
			p.send(b)
			p.pump()
		})
	}
}

func (p *sim) send(b *Batch) {
	if len(b.Items) == 0 || len(b.Items) > p.records {
		p.t.Fatalf("a batch of %d", len(b.Items))
	}
	p.calls = append(p.calls, p.w.seconds())
	p.sent += len(b.Items)
	for n, i := range b.Items {
		if n > 0 && b.Items[n-1].Ref == i.Ref {
			continue
		}
		if p.held[i.Ref] {
			p.t.Fatalf("two batches hold %v", i.Ref)
		}
		p.held[i.Ref] = true
	}
	results, took := p.sink(p.w, b.Items)
	p.w.in(took, func() {
		p.s.Judge(b, results, seconds(took), p.w.now)
		for n, i := range b.Items {
			delete(p.held, i.Ref)
			r := i.Value.(*simRecord)
			if b.Outcomes[n] == Waits {
				continue
			}
			if r.version != p.last[i.Ref]+1 {
				p.t.Fatalf("version %d of %v is settled after %d", r.version, i.Ref, p.last[i.Ref])
			}
			p.last[i.Ref] = r.version
			p.waiting--
			w := wait{i.Flow, i.Ref.Name, r.bad, r.at, p.w.seconds() - r.at}
			if b.Outcomes[n] == Letter {
				p.letters = append(p.letters, w)
			} else {
				p.waits = append(p.waits, w)
			}
		}
		p.s.Done(b, p.w.now)
		p.pump()
	})
}

// sinks

const quick = 0.005

// whole fails calls that hold something bad.
func whole(bad func(*Item) bool, took float64, result Result) sink {
	return func(_ *world, items []*Item) ([]Result, float64) {
		if slices.ContainsFunc(items, bad) {
			return slices.Repeat([]Result{result}, len(items)), took
		}
		return make([]Result, len(items)), quick
	}
}

// each fails the bad records, and a call takes as long as its slowest record.
func each(bad func(*Item) bool, took float64, result Result) sink {
	return func(_ *world, items []*Item) ([]Result, float64) {
		results, longest := make([]Result, len(items)), quick
		for n, i := range items {
			if bad(i) {
				results[n], longest = result, max(longest, took)
			}
		}
		return results, longest
	}
}

func isBad(i *Item) bool { return i.Value.(*simRecord).bad }

// figures

type figures struct {
	n             int
	p50, p99, max float64
}

func (f figures) String() string {
	return fmt.Sprintf("n %d p50 %.3f p99 %.2f max %.2f", f.n, f.p50, f.p99, f.max)
}

// figures of what was added from a time on and before another, of the flows with a prefix. What still waits counts as
// waiting until now.
func (p *sim) figures(prefix string, from, to float64) figures {
	var w []float64
	for _, x := range p.waits {
		if strings.HasPrefix(x.flow, prefix) && !x.bad && x.at >= from && x.at < to {
			w = append(w, x.took)
		}
	}
	for _, o := range p.s.objects {
		for _, i := range o.items {
			if r := i.Value.(*simRecord); strings.HasPrefix(i.Flow, prefix) && !r.bad && r.at >= from && r.at < to {
				w = append(w, p.w.seconds()-r.at)
			}
		}
	}
	slices.Sort(w)
	if len(w) == 0 {
		return figures{}
	}
	return figures{len(w), w[len(w)/2], w[min(len(w)-1, len(w)*99/100)], w[len(w)-1]}
}

// rate of calls in a second.
func (p *sim) rate(from, to float64) float64 {
	n := 0
	for _, at := range p.calls {
		if at >= from && at < to {
			n++
		}
	}
	return float64(n) / (to - from)
}

// delivered per second, of the flows with a prefix.
func (p *sim) delivered(prefix string, from, to float64) float64 {
	n := 0
	for _, x := range p.waits {
		if at := x.at + x.took; strings.HasPrefix(x.flow, prefix) && at >= from && at < to {
			n++
		}
	}
	return float64(n) / (to - from)
}

func ref(namespace, name string) delta.Ref { return delta.Ref{Namespace: namespace, Name: name} }
