package pipeline

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// poisonFrom refuses the object named poison from a version on.
func poisonFrom(version int) func(int, []sinks.Record) error {
	return func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		failed := map[string]bool{}
		for n, r := range batch {
			var v int
			_, _ = fmt.Sscan(strings.Split(r.ID, "/")[2], &v)
			if strings.Contains(r.Key, "/poison") && v >= version || failed[r.Key] {
				errs[n], failed[r.Key] = errDown, true
			}
		}
		return &sinks.BatchError{Errs: errs}
	}
}

// What was parked and came back is parked again when the object fails again.
func TestPoisonedOnceMore(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(poisonFrom(1))
	const memory = 64 << 10
	p := start(t, sink, &letters{}, spilling(b, memory, 1<<30))
	const changes = 400
	for n := range changes {
		mustTake(t, p, change(t, "poison", n+1))
		mustTake(t, p, change(t, fmt.Sprint("o", n%7), n+1))
		if n%10 == 9 {
			b.commit(p)
		}
	}
	eventually(t, "it is parked", func() bool { b.commit(p); return len(sink.storedIDs()) == changes && p.Stats().OnDisk == 0 })
	sink.set(poisonFrom(5))
	eventually(t, "it goes on", func() bool { b.commit(p); return len(sink.storedIDs()) == changes+4 })
	for n := range changes {
		mustTake(t, p, change(t, fmt.Sprint("p", n%7), n+1))
		if n%10 == 9 {
			b.commit(p)
		}
	}
	for deadline := time.Now().Add(5 * time.Second); len(sink.storedIDs()) != 2*changes+4; time.Sleep(time.Millisecond) {
		b.commit(p)
		if time.Now().After(deadline) {
			t.Fatalf("the others stand still: %d of %d, %+v", len(sink.storedIDs()), 2*changes+4, p.Stats())
		}
	}
	sink.set(nil)
	defer b.every(p)()
	settled(t, p, b)
	checkOrder(t, sink.storedIDs())
	if n := len(sink.storedIDs()); n != 3*changes {
		t.Errorf("got %d", n)
	}
}

// Many objects that come back at once keep to the bound.
func TestManyComeBack(t *testing.T) {
	limits := sinks.Limits{MaxRecords: 10, MaxBytes: 1 << 20, Linger: time.Millisecond, Concurrency: 50, Timeout: time.Second}
	t.Run("small", func(t *testing.T) { testManyComeBack(t, limits, time.Minute, 128<<10, 20, 50, 1) })
	limits.MaxRecords, limits.Linger = 100, 50*time.Millisecond // all go on with the same call
	t.Run("large", func(t *testing.T) { testManyComeBack(t, limits, 30*time.Millisecond, 1<<20, 100, 4, 40<<10) })
}

// testManyComeBack makes changes of objects, of so many bytes but for the first. Once they are parked, the sink takes all, these after a delay.
func testManyComeBack(t *testing.T, limits sinks.Limits, delay time.Duration, memory int64, objects, changes, size int) {
	sink, b := &script{}, newLogbook()
	sink.set(poisonFrom(1))
	p := start(t, sink, &letters{}, func(o *Options) {
		spilling(b, memory, 1<<30)(o)
		o.Limits = limits
	})
	for v := range changes {
		for n := range objects {
			mustTake(t, p, largeChange(t, fmt.Sprint("poison", n), v+1, 1+min(v, 1)*(size-1)))
			mustTake(t, p, change(t, fmt.Sprint("good", n), v+1))
		}
		b.commit(p)
	}
	eventually(t, "they are parked", func() bool {
		b.commit(p)
		return p.Stats().OnDisk == 0 && len(sink.storedIDs()) == objects*changes
	})
	before := p.Stats().Bytes
	release := make(chan struct{})
	end := sync.OnceFunc(func() { close(release) })
	t.Cleanup(end)
	var heads sync.Map
	sink.set(func(_ int, batch []sinks.Record) error {
		slow := true
		for _, r := range batch {
			if strings.HasSuffix(r.ID, "/1/MODIFIED") {
				heads.Store(r.ID, true)
				slow = false // a probe among them: if those hung, the breaker would stay tripped
			}
		}
		if slow {
			select {
			case <-release:
			case <-time.After(delay):
			}
		}
		return nil
	})
	worst := before
	eventually(t, "all go on", func() bool {
		worst = max(worst, p.Stats().Bytes)
		n := 0
		heads.Range(func(any, any) bool { n++; return true })
		return n == objects
	})
	for range 100 {
		time.Sleep(2 * time.Millisecond)
		worst = max(worst, p.Stats().Bytes)
	}
	end()
	drain(t, p)
	t.Logf("%d before, worst %d", before, worst)
	if worst > memory {
		t.Errorf("memory held %d", worst)
	}
	checkOrder(t, sink.storedIDs())
}

// What is parked leaves memory, whatever its object keeps.
func TestParkedItemsAreFreed(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(poisonFrom(1))
	p := start(t, sink, &letters{}, spilling(b, 4<<20, 1<<30))
	const changes = 3000
	for n := range changes {
		mustTake(t, p, change(t, "poison", n+1))
		mustTake(t, p, change(t, "good", n+1))
	}
	eventually(t, "the good one is settled", func() bool { return p.Stats().Waiting == changes })
	var items []weak.Pointer[item]
	p.mu.Lock()
	for e := p.backlog.arrivals.Front(); e != nil; e = e.Next() {
		i := e.Value.(*item)
		items = append(items, weak.Make(i))
	}
	p.mu.Unlock()
	eventually(t, "they are parked", func() bool {
		b.commit(p)
		s := p.Stats()
		return s.Bytes <= 2*parkedSize*changes
	})
	runtime.GC()
	alive := 0
	for _, i := range items {
		if i.Value() != nil {
			alive++
		}
	}
	if len(items) != changes || alive > 2 {
		t.Errorf("of %d items that were parked, %d are in memory", len(items), alive)
	}
}

// Beside many parked objects, parking what comes takes no longer than beside few: it happens with each object that is tried again.
func TestParkBesideManyParkedObjects(t *testing.T) {
	park := func(objects int) time.Duration {
		sink, b := &script{}, newLogbook()
		options := Options{Options: shape.Options{Name: "test", Cluster: "c", Format: shape.FormatCloudEvents}, Sink: sink, SinkName: "script", DeadLetter: &letters{}}
		tenantLimits(100, 8)(&options)
		spilling(b, 8<<20, 1<<30)(&options)
		p := New(options, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		defer p.backlog.queue.ShutDown()
		boundFailing(p, objects+1)
		for n := range objects {
			mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", n), n+1))
			if n%500 != 499 {
				continue
			}
			b.commit(p)
			p.mu.Lock()
			for o := p.backlog.take(); o != nil; o = p.backlog.take() { // as settle gives back what failed
				p.backlog.done(o, true, time.Hour)
			}
			p.park()
			p.mu.Unlock()
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.budget.memory >= options.MaxBytes/4 || len(p.backlog.failing) != objects {
			t.Fatalf("%d of %d objects fail, and take %d bytes", len(p.backlog.failing), objects, p.budget.memory)
		}
		p.budget.memory += options.MaxBytes / 2 // as if others waited
		begun := time.Now()
		for range 200 {
			p.park()
		}
		return time.Since(begun)
	}
	few, many := time.Hour, time.Hour
	for tries := 1; ; tries++ {
		few, many = min(few, park(3000)), min(many, park(24_000))
		if many < 3*few+time.Millisecond {
			return
		}
		if tries == 10 {
			t.Fatalf("%v beside 3,000 objects, and %v beside eight times as many", few, many)
		}
	}
}

// A probe that was read back and is kept was tried: it does not hold up what is read back of others.
func TestComeBackBesideAProbeThatIsKept(t *testing.T) {
	b := newLogbook()
	options := Options{Options: shape.Options{Name: "test", Cluster: "c", Format: shape.FormatCloudEvents}, Sink: &script{}, SinkName: "script", DeadLetter: &letters{}}
	tenantLimits(100, 8)(&options)
	spilling(b, 2<<20, 1<<30)(&options)
	p := New(options, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	defer p.backlog.queue.ShutDown()
	bad, good := changeIn(t, "tenant", "bad", 1), change(t, "good", 2)
	mustTake(t, p, bad)
	mustTake(t, p, good)
	b.commit(p)
	entries, err := b.Read(0, 1<<30)
	if err != nil || len(entries) != 2 {
		t.Fatalf("%d entries, %v", len(entries), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	first, second := p.backlog.objects[bad.Ref()], p.backlog.objects[good.Ref()]
	for o := p.backlog.take(); o != nil; o = p.backlog.take() {
		p.backlog.done(o, true, time.Hour)
		p.parkHead(o)
	}
	p.breaker.fail(p.now(), 0, false)
	p.budget.memory = options.MaxBytes * 5 / 8
	p.comeBack(first, entries[:1])
	if !p.mayReturn(second.namespace()) {
		t.Error("nothing is read back of another namespace until there is a probe for what was")
	}
	if p.mayReturn(first.namespace()) {
		t.Error("more is read back of a namespace, and the first was not tried")
	}
	fails := func(probe *batch, permanent bool) {
		p.breaker.probed(p.now(), false)
		p.mu.Unlock()
		p.settle(probe, p.decide(probe, []*sinks.Error{{Reason: sinks.ReasonOther, Err: errDown, Permanent: permanent}}, false, false))
		p.mu.Lock()
	}
	probe := newBatch()
	first.inFlight, probe.probe, probe.tries = p.appendRecord(probe, first, first.items[0]), true, 1
	fails(probe, false)
	if len(p.retries) != 1 {
		t.Fatalf("%d batches are kept", len(p.retries))
	}
	p.log.returning.push(second)
	if p.log.returning.next(p.mayReturn) != second {
		t.Error("nothing is read back of another namespace until the probe gets through")
	}
	p.budget.memory = options.MaxBytes * 7 / 8
	if p.log.returning.next(p.mayReturn) != nil {
		t.Error("memory is not bounded by what is kept")
	}
	p.takeRetry(probe)
	for n := range maxRefused {
		p.refused[delta.Ref{Resource: pods, Name: fmt.Sprint("refused-", n)}] = struct{}{}
	}
	if fails(probe, true); len(p.retries) != 1 || p.counts.Waiting != 2 {
		t.Fatalf("the sink refuses all, and the record is not kept: %d batches are, %d records wait", len(p.retries), p.counts.Waiting)
	}
	p.takeRetry(probe)
	fails(probe, false)
	if len(p.retries) != 0 || first.inFlight || p.log.returning.next(p.mayReturn) != second {
		t.Errorf("it fails once more, and does not give its place to another: %d batches are kept", len(p.retries))
	}
}

// What comes back takes no longer beside many others in memory than beside few, and counts towards the oldest.
func TestComeBackBesideManyObjects(t *testing.T) {
	comeBack := func(objects int) time.Duration {
		b := newLogbook()
		options := Options{Options: shape.Options{Name: "test", Cluster: "c", Format: shape.FormatCloudEvents}, Sink: &script{}, SinkName: "script", DeadLetter: &letters{}}
		tenantLimits(100, 8)(&options)
		spilling(b, 64<<20, 1<<30)(&options)
		p := New(options, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		defer p.backlog.queue.ShutDown()
		var oldest time.Time
		for n := range objects {
			d := changeIn(t, "tenant", fmt.Sprint("bad-", n), n+1)
			if n == objects/2 {
				d.Observed = d.Observed.Add(-time.Hour)
				oldest = d.Observed
			}
			mustTake(t, p, d)
		}
		b.commit(p)
		entries, err := b.Read(0, 1<<30)
		if err != nil || len(entries) != objects {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		p.mu.Lock()
		all := p.backlog.objects
		for o := p.backlog.take(); o != nil; o = p.backlog.take() {
			p.backlog.done(o, true, time.Hour)
		}
		back := entries[objects/2 : objects/2+400]
		for _, e := range back {
			p.parkHead(all[e.Delta.Ref()])
		}
		begun := time.Now()
		for _, e := range back {
			p.comeBack(all[e.Delta.Ref()], []delta.Entry{e})
		}
		took := time.Since(begun)
		p.mu.Unlock()
		if s := p.Stats(); !s.Oldest.Equal(oldest) {
			t.Fatalf("the oldest is of %v, want %v", s.Oldest, oldest)
		}
		return took
	}
	few, many := time.Hour, time.Hour
	for tries := 1; ; tries++ {
		few, many = min(few, comeBack(1000)), min(many, comeBack(16_000))
		if many < 5*few {
			return
		}
		if tries == 10 {
			t.Fatalf("%v beside 1,000 objects, and %v beside sixteen times as many", few, many)
		}
	}
}
