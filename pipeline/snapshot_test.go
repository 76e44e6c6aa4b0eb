package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

func snapshotOf(t testing.TB, name string, version int) *delta.Delta {
	return inSnapshot(change(t, name, version))
}

func inSnapshot(d *delta.Delta) *delta.Delta {
	d.Type, d.Snapshot, d.SnapshotSequence = delta.Added, true, 1
	return d
}

func digits(version int) string { return fmt.Sprintf("%020d", version) }

func markOf(sequence uint64) *delta.Mark {
	return &delta.Mark{Watch: "w", Resource: pods, SnapshotSequence: sequence, Observed: time.Now()}
}

func mustOffer(t testing.TB, p *Pipeline, d *delta.Delta) {
	t.Helper()
	ticket, ok := p.Offer(t.Context(), d, false)
	if !ok {
		t.Fatal("no room")
	}
	p.Take(ticket)
}

func offerMark(t testing.TB, p *Pipeline, sequence uint64) {
	t.Helper()
	ticket, ok := p.OfferMark(markOf(sequence))
	if !ok {
		t.Fatal("no room")
	}
	p.Take(ticket)
}

func mustSettle(t testing.TB, p *Pipeline) {
	t.Helper()
	if err := p.Settled(t.Context(), "w"); err != nil {
		t.Fatal(err)
	}
}

// lacks checks how many objects a snapshot lacks, and whether it lacks others.
func lacks(t testing.TB, p *Pipeline, sequence uint64, objects int, more bool) {
	t.Helper()
	if got := p.Lacking("w", sequence); len(got.Objects) != objects || got.More != more {
		t.Errorf("got %+v, want %d objects, and others: %v", got, objects, more)
	}
}

// Settled waits for what was taken of the watch before, live changes too, and for nothing that comes later. A gap holds nothing up.
func TestMarkWaitsForWhatWasSentBefore(t *testing.T) {
	for _, dies := range []bool{false, true} {
		t.Run(fmt.Sprint("one dies ", dies), func(t *testing.T) {
			var mu sync.Mutex
			away := map[string]bool{"late": true, "live": true, "later": true, "": true}
			sink := &script{}
			sink.set(func(_ int, batch []sinks.Record) error {
				mu.Lock()
				defer mu.Unlock()
				errs := make([]error, len(batch))
				for n, r := range batch {
					switch {
					case away[r.Fields.Name]:
						errs[n] = errDown
					case r.Fields.Name == "late" && dies:
						errs[n] = sinks.Permanent(sinks.ReasonRejected, errors.New("400"))
					}
				}
				return &sinks.BatchError{Errs: errs}
			})
			arrives := func(name string) {
				mu.Lock()
				defer mu.Unlock()
				delete(away, name)
			}
			p := start(t, sink, &letters{}, nil)
			if err := p.Gap(t.Context(), &delta.Gap{Watch: "other", Resource: pods, Observed: time.Now()}); err != nil {
				t.Fatal(err)
			}
			mustOffer(t, p, snapshotOf(t, "a", 5))
			mustOffer(t, p, snapshotOf(t, "late", 5))
			mustTake(t, p, change(t, "live", 6))
			settled := make(chan error, 1)
			go func() { settled <- p.Settled(context.Background(), "w") }()
			eventually(t, "an attempt", func() bool { return p.Stats().LastError != "" && len(sink.storedIDs()) == 1 })
			eventually(t, "the call", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				return p.counts.watch("w").since > 0
			})
			mustTake(t, p, change(t, "later", 7))
			for _, name := range []string{"live", "late"} {
				select {
				case err := <-settled:
					t.Errorf("settled before %q was: %v", name, err)
				default:
				}
				arrives(name)
				if name == "live" {
					eventually(t, name, func() bool { return len(sink.storedIDs()) == 2 })
				}
			}
			if err := <-settled; err != nil {
				t.Error(err)
			}
			lacks(t, p, 1, map[bool]int{true: 1}[dies], false)
			offerMark(t, p, 1)
			arrives("later")
			arrives("")
			drain(t, p)
			if got := sink.storedIDs(); !slices.Contains(got, "c/w/1/SNAPSHOT") {
				t.Errorf("got %q", got)
			}
		})
	}
}

// An object whose record died is not missing if a later one arrives, and each snapshot counts by itself.
func TestSnapshotLacksWhatDied(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n, r := range batch {
			if strings.Contains(r.ID, "/5/") {
				errs[n] = sinks.Permanent(sinks.ReasonRejected, errors.New("400"))
			}
		}
		return &sinks.BatchError{Errs: errs}
	})
	p := start(t, sink, &letters{}, nil)
	settle := func() {
		t.Helper()
		settled := make(chan error, 1)
		go func() { settled <- p.Settled(context.Background(), "w") }()
		for n := 1; ; n++ {
			select {
			case err := <-settled:
				if err != nil {
					t.Error(err)
				}
				return
			case <-time.After(time.Millisecond):
				good := change(t, fmt.Sprint("good-", n), 7) // so that the sink is not blamed
				good.Watch = "other"
				mustTake(t, p, good)
			}
		}
	}
	for n := range 3 {
		mustOffer(t, p, snapshotOf(t, fmt.Sprint("o", n), 5))
	}
	later := change(t, "o1", 6)
	later.SnapshotSequence = 1
	mustTake(t, p, later)
	settle()
	lacks(t, p, 1, 2, false)
	for n := range maxDead + 5 {
		d := snapshotOf(t, fmt.Sprint("o", n), 5)
		d.SnapshotSequence = 2
		mustTake(t, p, d)
	}
	settle()
	lacks(t, p, 2, maxDead, true)
	lacks(t, p, 3, 0, false)
	drain(t, p)
}

// A snapshot takes a part of the memory only, whatever its pipeline has: live changes always find room.
func TestSnapshotLeavesRoom(t *testing.T) {
	open := make(chan struct{})
	sink := &script{answer: func(int, []sinks.Record) error { <-open; return nil }}
	p := start(t, sink, &letters{}, func(o *Options) { o.MaxBytes = 64 << 10 })
	taken := 0
	for {
		ticket, ok := p.Offer(t.Context(), snapshotOf(t, fmt.Sprint("o", taken), 5), false)
		if !ok {
			break
		}
		p.Take(ticket)
		taken++
	}
	if bytes := p.Stats().Bytes; bytes < 30<<10 || bytes > 34<<10 {
		t.Errorf("the snapshot takes %d of 65536 bytes", bytes)
	}
	mustTake(t, p, change(t, "live", 9)) // finds room at once
	waiting := make(chan error, 1)
	go func() { waiting <- p.Room(context.Background()) }()
	close(open)
	if err := <-waiting; err != nil {
		t.Fatal(err)
	}
	drain(t, p)
	if got := sink.storedIDs(); len(got) != taken+1 {
		t.Errorf("stored %d, want %d", len(got), taken+1)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Room(ended); err != nil {
		t.Errorf("with all delivered: %v", err)
	}
}

// Records of one version in two snapshots have one id, and another one for transports.
func TestTransportIDsOfSnapshots(t *testing.T) {
	var mu sync.Mutex
	var ids []string
	sink := &script{answer: func(_ int, batch []sinks.Record) error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range batch {
			ids = append(ids, strings.TrimPrefix(r.DedupID, "test/"+r.ID))
		}
		return nil
	}}
	p := start(t, sink, &letters{}, nil)
	for _, sequence := range []uint64{0, 7, 8} {
		d := snapshotOf(t, "a", 5)
		d.Sequence, d.SnapshotSequence = 5, sequence
		mustTake(t, p, d)
	}
	back := change(t, "a", 5) // with the resource, which was gone
	back.Type, back.Inferred, back.Sequence = delta.Added, true, 9
	mustTake(t, p, back)
	drain(t, p)
	if !slices.Equal(ids, []string{"/" + digits(5), "/" + digits(5) + "/" + digits(7), "/" + digits(5) + "/" + digits(8), "/" + digits(9)}) {
		t.Errorf("got %q", ids)
	}
}

// A filter that looks at more than the object keeps records of a snapshot back although the pipeline has their objects: a consumer must not
// take the snapshot for all that exists.
func TestSnapshotLacksWhatAFilterKeepsBack(t *testing.T) {
	for name, test := range map[string]struct {
		filter shape.Filter
		lacks  bool
	}{
		"the type":                 {shape.TypesFilter{delta.Modified, delta.Deleted}, true},
		"the object, which passes": {shape.NamespacesFilter{Include: []string{"shop"}}, false},
		"the object":               {shape.NamespacesFilter{Include: []string{"other"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, &script{}, &letters{}, func(o *Options) { o.Filters = []shape.Filter{test.filter} })
			mustOffer(t, p, snapshotOf(t, "a", 5))
			mustSettle(t, p)
			lacks(t, p, 1, 0, test.lacks)
			offerMark(t, p, 1)
			lacks(t, p, 2, 0, false)
			drain(t, p)
		})
	}
}

// noPlaceForMarks answers as a broker whose topics for marks do not exist.
func noPlaceForMarks(_ int, batch []sinks.Record) error {
	errs := make([]error, len(batch))
	for n, r := range batch {
		if r.Fields.Type == "SNAPSHOT" {
			errs[n] = sinks.Transient(sinks.ReasonNotFound, errors.New("unknown topic"))
		}
	}
	return &sinks.BatchError{Errs: errs}
}

// A mark for which there is no place, since the topic that it goes to does not exist for example, holds nothing up, and goes to the
// dead letter: else its snapshot would have no end, and nor would a stop.
func TestRefusedMarkHoldsNothingUp(t *testing.T) {
	sink, dead := &script{answer: noPlaceForMarks}, &letters{}
	p := start(t, sink, dead, nil)
	mustOffer(t, p, snapshotOf(t, "a", 5))
	mustSettle(t, p)
	offerMark(t, p, 1)
	eventually(t, "an attempt", func() bool { return p.Stats().LastError != "" })
	mustTake(t, p, change(t, "live", 9))
	eventually(t, "the records", func() bool { return len(sink.storedIDs()) == 2 })
	drain(t, p)
	if got := dead.ids(); !slices.Equal(got, []string{"c/w/1/SNAPSHOT"}) || !p.Lacking("w", 1).Mark {
		t.Errorf("got the dead letters %q, %+v", got, p.Lacking("w", 1))
	}
	for _, letter := range dead.got {
		if letter.Reason != string(sinks.ReasonNotFound) || len(letter.Record.Body) == 0 {
			t.Errorf("got %+v", letter)
		}
	}
	sink.set(nil) // now there is
	offerMark(t, p, 2)
	drain(t, p)
	if p.Lacking("w", 2).Mark {
		t.Error("the next one is a dead letter too")
	}
}

// One that comes while there is no place for any record waits until there is.
func TestMarkOfASinkThatRefusesAll(t *testing.T) {
	for _, reason := range []sinks.Reason{sinks.ReasonNotFound, sinks.ReasonUnauthorized} {
		sink, dead := &script{}, &letters{}
		p := start(t, sink, dead, nil)
		mustTake(t, p, change(t, "before", 4))
		drain(t, p)
		sink.set(func(int, []sinks.Record) error { return sinks.Transient(reason, errors.New("no")) })
		offerMark(t, p, 1)
		mustOffer(t, p, snapshotOf(t, "a", 5))
		sink.mu.Lock()
		calls := sink.calls
		sink.mu.Unlock()
		eventually(t, "more attempts", func() bool {
			sink.mu.Lock()
			defer sink.mu.Unlock()
			return sink.calls > calls+4
		})
		sink.set(nil)
		drain(t, p)
		if got := dead.ids(); len(got) > 0 || len(sink.storedIDs()) != 3 {
			t.Errorf("%s: stored %q, dead %q", reason, sink.storedIDs(), got)
		}
	}
}

// In a pipeline that has nothing else to send, nothing shows whether there is a place for other records. So the mark is tried as a
// record that the sink as a whole refuses, until there is a place for it, or another record gets through.
func TestRefusedMarkOfAnIdlePipeline(t *testing.T) {
	for _, created := range []bool{true, false} {
		sink, dead := &script{answer: noPlaceForMarks}, &letters{}
		p := start(t, sink, dead, nil)
		offerMark(t, p, 1)
		for _, attempts := range []int{3, 6} {
			eventually(t, "more attempts", func() bool {
				sink.mu.Lock()
				defer sink.mu.Unlock()
				return sink.calls >= attempts
			})
		}
		if len(dead.ids()) > 0 {
			t.Errorf("got %+v, dead %q", p.Stats(), dead.ids())
		}
		if created {
			sink.set(nil)
		} else {
			mustTake(t, p, change(t, "other", 5))
		}
		drain(t, p)
		if want := map[bool]int{false: 1}[created]; len(dead.ids()) != want || len(sink.storedIDs()) != 1 {
			t.Errorf("stored %q, dead %q", sink.storedIDs(), dead.ids())
		}
	}
}

// A snapshot of which a record cannot be read back from the log ends, and does not count as complete, even if it cannot be read whose
// record it was. The next one may.
func TestSnapshotWithADamagedRecord(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		t.Run(fmt.Sprint("after a restart ", restarts), func(t *testing.T) {
			sink, dead, b := &script{}, &letters{}, newLogbook()
			sink.set(func(int, []sinks.Record) error { return errDown })
			p, stop := launch(sink, dead, spilling(b, 8<<10, 1<<30))
			defer func() { stop() }()
			last := uint64(0)
			for p.Stats().OnDisk < 9 {
				last++
				mustTake(t, p, snapshotOf(t, fmt.Sprint("o", last), int(last)))
			}
			b.commit(p)
			b.mu.Lock()
			b.entries[last-4] = delta.Entry{LogKey: b.entries[last-4].LogKey, Delta: &delta.Delta{Type: delta.Modified, Object: &delta.Object{}, Bare: true}, Unsendable: "damaged"}
			b.mu.Unlock()
			if restarts {
				stop()
				p, stop = launch(sink, dead, spilling(b, 8<<10, 1<<30))
			}
			defer b.every(p)()
			sink.set(nil)
			mustSettle(t, p)
			if got := p.Lacking("w", 1); !got.More || !got.Unreadable {
				t.Errorf("got %+v", got)
			}
			drain(t, p)
			if len(dead.ids()) != 1 || len(sink.storedIDs()) != int(last)-1 {
				t.Errorf("%d stored, dead %q", len(sink.storedIDs()), dead.ids())
			}
			next := snapshotOf(t, "next", int(last)+1)
			next.SnapshotSequence = 2
			mustTake(t, p, next)
			mustSettle(t, p)
			lacks(t, p, 2, 0, false)
			settled(t, p, b)
		})
	}
}

// Records that the sink refuses hold up no snapshot of what it takes.
func TestSnapshotBesideRefusedObjects(t *testing.T) {
	for _, test := range []struct {
		name       string
		bad        func(context.Context) error
		dead       *letters
		many, size int
		disk       string
	}{
		{"many objects", refuse, &letters{}, 1000, 1, ""},
		{"one large object", refuse, &letters{}, 1, 70 << 10, ""},
		{"no room for a dead letter", rejected, &letters{fail: errDown}, 1, 70 << 10, ""},
		{"a full disk", refuse, &letters{}, 1, 70 << 10, "full"},
		{"no disk", refuse, &letters{}, 1, 70 << 10, "none"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: test.bad, perRecord: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				b := newLogbook()
				b.set(test.disk == "full", nil)
				p, stop := launch(sink, test.dead, func(o *Options) {
					tenantLimits(100, 4)(o)
					if o.MaxBytes = 64 << 20; test.disk != "none" {
						spilling(b, o.MaxBytes, 10<<30)(o)
					}
				})
				defer stop()
				defer b.commits(p, 200*time.Millisecond)()
				mustTake(t, p, change(t, "first", 1))
				for n := range test.many {
					mustTake(t, p, inNamespace(t, largeChange(t, fmt.Sprint("bad-", n), n+1, test.size), "tenant"))
				}
				time.Sleep(time.Second)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				var live sync.WaitGroup
				defer live.Wait()
				defer cancel()
				live.Go(func() { // so that the sink is not away
					for version := 2; ctx.Err() == nil; version++ {
						if err := p.Delta(ctx, change(t, "first", version)); err != nil {
							return
						}
						time.Sleep(100 * time.Millisecond)
					}
				})
				const good = 200
				for n := range good {
					for {
						if ticket, ok := p.Offer(ctx, snapshotOf(t, fmt.Sprint("good-", n), 5), false); ok {
							p.Take(ticket)
							break
						}
						if err := p.Room(ctx); err != nil {
							t.Fatalf("%d of %d objects found room in a minute beside %d bytes", n, good, p.Stats().Bytes)
						}
					}
				}
				time.Sleep(5 * time.Second)
				sink.mu.Lock()
				defer sink.mu.Unlock()
				if len(sink.took) != good+1 {
					t.Errorf("%d of %d objects arrived", len(sink.took)-1, good)
				}
			})
		})
	}
}

// A snapshot waits, and does not spin, while failing records leave no room for an object of it.
func TestNoRoomBesideRefusedObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: refuse, perRecord: true, took: map[string]time.Time{}}
		const memory = 256 << 10
		p, stop := launch(sink, &letters{}, func(o *Options) { o.MaxBytes = memory })
		defer stop()
		mustTake(t, p, largeChange(t, "bad-1", 1, memory/3))
		mustTake(t, p, change(t, "first", 1)) // so that the sink is not blamed
		time.Sleep(time.Second)
		if _, ok := p.Offer(t.Context(), inSnapshot(largeChange(t, "good", 2, memory*3/4)), false); ok {
			t.Fatal("there is room for it")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if p.Room(ctx) == nil {
			t.Error("there is room beside what fails")
		}
	})
}
