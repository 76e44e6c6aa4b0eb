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

// Whatever watches report an object, as when the configuration was edited several times with gaps that no sink took: it goes in the order of
// its arrival, behind the notices of each watch that came before it there; and once all notices are settled nothing is held back.
func TestHeldBackModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		queues := map[delta.Ref][]*item{}
		b := newBacklog(func(i *item) { queues[i.Ref] = append(queues[i.Ref], i) })
		var all []*item
		settle := func() bool {
			var first []*item // of each object that has one
			for _, queue := range queues {
				if len(queue) > 0 {
					first = append(first, queue[0])
				}
			}
			if len(first) == 0 {
				return false
			}
			slices.SortFunc(first, func(i, j *item) int { return int(i.seq) - int(j.seq) })
			i := rapid.SampledFrom(first).Draw(t, "settled")
			for _, before := range all[:i.seq] {
				if !before.settled && (before.watch == i.watch && before.notice() || before.Ref == i.Ref) {
					t.Fatalf("%s %v passed %s %v", i.watch, i.Ref, before.watch, before.Ref)
				}
			}
			queues[i.Ref] = queues[i.Ref][1:]
			b.remove(i)
			return true
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch kind := rapid.SampledFrom([]string{"delta", "delta", "notice", "settle"}).Draw(t, "step"); kind {
			case "settle":
				settle()
			default:
				i := &item{watch: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "watch"), seq: uint64(len(all)), size: 1}
				if i.Ref.Name = i.watch; kind == "notice" {
					i.gap = &delta.Gap{}
				} else {
					i.delta, i.Ref.Name = &delta.Delta{}, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "object")
				}
				all = append(all, i)
				b.add(i, &b.arrivals)
			}
		}
		for settle() {
		}
		if n := slices.IndexFunc(all, func(i *item) bool { return !i.settled }); n >= 0 || len(b.held)+len(b.heldOf) > 0 {
			t.Fatalf("%d is held back for ever; held %v, %v", n, b.held, b.heldOf)
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
	offerMark(t, p, delta.Started)
	other := &delta.Mark{Phase: delta.Started, Watch: "w2", Snapshot: "another", Resource: pods, Observed: time.Now()}
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
