package pipeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// A round of a watch is settled when nothing of it waits that was taken before, whatever was taken since, in this run or before the last.
func TestCountBeforeModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const former = 5
		c := Counts{Dead: map[string]uint64{}, watches: map[string]*watchCount{}, firstOfRun: former}
		watches := rapid.SampledFrom([]string{"a", "b"})
		var waiting, unread []*item
		next := uint64(0)
		made := func() *item {
			next++
			return newItem(delta.Entry{Delta: &delta.Delta{Watch: watches.Draw(t, "watch"), Object: &delta.Object{}}})
		}
		for n := range uint64(former) {
			i := made()
			i.seq, i.restored = n, true
			unread = append(unread, i)
			c.Restored, c.Waiting = c.Restored+1, c.Waiting+1
		}
		settled, cuts := map[string]func() bool{}, map[string]uint64{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch step := rapid.SampledFrom([]string{"take", "take", "read", "settle", "settle", "round"}).Draw(t, "step"); {
			case step == "take":
				i := made()
				i.seq = next - 1
				c.take(i)
				waiting = append(waiting, i)
			case step == "read" && len(unread) > 0:
				c.restored(unread[0])
				waiting, unread = append(waiting, unread[0]), unread[1:]
			case step == "settle" && len(waiting) > 0:
				n := rapid.IntRange(0, len(waiting)-1).Draw(t, "settled")
				again := *waiting[n] // as it is after it was read from the log
				c.settle(&again, "")
				waiting = slices.Delete(waiting, n, n+1)
			case step == "round" && len(unread) == 0:
				w := watches.Draw(t, "watch")
				settled[w], cuts[w] = c.countBefore(w, next), next
			}
			for w, isSettled := range settled {
				want := !slices.ContainsFunc(waiting, func(i *item) bool { return i.watch == w && i.seq < cuts[w] })
				if got := isSettled(); got != want {
					t.Fatalf("of %s: got %v, want %v", w, got, want)
				}
			}
		}
	})
}

// A mark that fails for any reason does not hold up that of another snapshot, and what follows that.
func TestMarkBehindAFailedMarkOfAnotherSnapshot(t *testing.T) {
	sink := &script{answer: func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n, r := range batch {
			if r.Fields.Type == "SNAPSHOT" {
				errs[n] = errDown
			}
		}
		return &sinks.BatchError{Errs: errs}
	}}
	p := start(t, sink, &letters{}, nil)
	offerMark(t, p, 1)
	other := &delta.Mark{Watch: "w2", SnapshotSequence: 2, Resource: pods, Observed: time.Now()}
	ticket, ok := p.OfferMark(other)
	if !ok {
		t.Fatal("no room for a mark")
	}
	p.Take(ticket)
	behind := change(t, "behind", 9)
	behind.Watch = "w2"
	mustTake(t, p, behind)
	for n := 0; len(sink.storedIDs()) == 0 || !slices.ContainsFunc(sink.storedIDs(), func(id string) bool { return strings.Contains(id, "uid-behind") }); n++ {
		if n == 2000 {
			t.Fatal("what follows the other mark does not arrive")
		}
		free := change(t, fmt.Sprint("free-", n), 10+n) // something gets through
		free.Watch = "w3"
		mustTake(t, p, free)
		time.Sleep(5 * time.Millisecond)
	}
}
