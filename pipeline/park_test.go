package pipeline

import (
	"fmt"
	"runtime"
	"strings"
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
	eventually(t, "the good one is delivered", func() bool { return len(sink.storedIDs()) == changes })
	var items []weak.Pointer[item]
	p.mu.Lock()
	for i := p.backlog.oldest; i != nil; i = i.newer {
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
