package pipeline

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

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
	sink, b := &script{}, newLogbook()
	sink.set(poisonFrom(1))
	const memory = 128 << 10
	p := start(t, sink, &letters{}, func(o *Options) {
		spilling(b, memory, 1<<30)(o)
		o.Limits.Concurrency = 50
	})
	const objects, changes = 20, 50
	for v := range changes {
		for n := range objects {
			mustTake(t, p, change(t, fmt.Sprint("poison", n), v+1))
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
			<-release
		}
		return nil
	})
	eventually(t, "all go on", func() bool {
		n := 0
		heads.Range(func(any, any) bool { n++; return true })
		return n == objects
	})
	time.Sleep(200 * time.Millisecond)
	worst := p.Stats().Bytes
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
