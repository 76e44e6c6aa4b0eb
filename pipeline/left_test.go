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

// Of a tenant who makes any number of objects that the sink refuses, not many are in memory. The changes of others arrive soon, and so
// do their snapshots. Once the sink takes the tenant's records, all arrive, in order.
func TestTooManyRefusedObjects(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name                            string
		objects, changes, bound, memory int
		// most is how many objects may be in memory.
		most  int
		block bool
		slow  bool // not so fast that the sink seems to be away
	}{
		{name: "much memory", objects: 2000, changes: 1, bound: 20, memory: 64 << 20, most: 150},
		{name: "little memory", objects: 2000, changes: 1, bound: 20, memory: 64 << 10, most: 150},
		{name: "little memory, many changes of each", objects: 500, changes: 5, bound: 20, memory: 64 << 10, most: 150},
		{name: "little memory, which so many fill", objects: 3000, changes: 1, bound: maxFailing, memory: 64 << 10, most: 1000, slow: true},
		{name: "little memory, which many changes of few fill", objects: 10, changes: 300, bound: maxFailing, memory: 64 << 10, most: 150},
		{name: "no spilling", objects: 2000, changes: 1, bound: 20, memory: 64 << 20, most: 150, block: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink, b := &script{}, newLogbook()
				var mu sync.Mutex
				took := map[string]time.Time{}
				refuse := refuseBad(true)
				sink.set(func(call int, batch []sinks.Record) error {
					mu.Lock()
					for _, r := range batch {
						if !strings.Contains(r.Key, "/bad-") {
							took[r.ID] = time.Now()
						}
					}
					mu.Unlock()
					return refuse(call, batch)
				})
				p, stop := launch(sink, &letters{}, func(o *Options) {
					tenantLimits(100, 4)(o)
					spilling(b, int64(test.memory), 1<<30)(o)
					o.Spill = !test.block
				})
				defer stop()
				boundFailing(p, test.bound)
				endCommits := b.commits(p, 200*time.Millisecond)
				defer endCommits()
				refused, most, total := 0, 0, 0
				bad := func() {
					mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", refused%test.objects), refused+1))
					refused++
					total++
				}
				observe := func() {
					p.mu.Lock()
					most = max(most, len(p.backlog.objects))
					p.mu.Unlock()
					if s := p.Stats(); !s.Balanced() || s.Bytes > int64(test.memory)+maxBuffered {
						t.Fatalf("%+v", s)
					}
				}
				sent := map[string]time.Time{}
				good := func() {
					d := change(t, fmt.Sprint("good-", len(sent)%40), len(sent)+1)
					sent[d.ID("c")] = time.Now()
					mustTake(t, p, d)
					total++
				}
				for n := 0; refused < test.objects*test.changes*3/4; n++ {
					bad()
					if n%10 == 0 || test.slow {
						good()
						time.Sleep(20 * time.Millisecond)
						observe()
					}
				}
				for range 50 * 20 {
					good()
					if refused < test.objects*test.changes {
						bad()
					}
					time.Sleep(20 * time.Millisecond)
					observe()
				}
				if s := p.Stats(); s.OnDisk == 0 || time.Since(s.Oldest) < 20*time.Second {
					t.Errorf("%d are left, and the oldest is of %v", s.OnDisk, s.Oldest)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				for n := range 400 {
					d := snapshotOf(t, fmt.Sprint("listed-", n), 5)
					if n%2 == 0 {
						d = inNamespace(t, snapshotOf(t, fmt.Sprint("bad-listed-", n), 5), "tenant")
					} else {
						sent[d.ID("c")] = time.Now()
					}
					offer(ctx, t, p, d)
					total++
					observe()
				}
				time.Sleep(5 * time.Second)
				mu.Lock()
				for id, at := range sent {
					if took[id].IsZero() || took[id].Sub(at) > 3*time.Second {
						t.Errorf("%s arrived after %v", id, took[id].Sub(at))
					}
				}
				mu.Unlock()
				t.Logf("at most %d objects were in memory", most)
				if most > test.most {
					t.Error("that is too many")
				}
				sink.set(nil)
				for deadline := time.Now().Add(10 * time.Minute); p.Stats().Waiting > 0 && time.Now().Before(deadline); {
					time.Sleep(100 * time.Millisecond)
					observe()
				}
				endCommits()
				settled(t, p, b)
				ids := sink.storedIDs()
				checkOrder(t, ids)
				if len(ids) != total || len(sink.overlapping()) > 0 {
					t.Errorf("%d of %d arrived, overlapping %v", len(ids), total, sink.overlapping())
				}
			})
		})
	}
}

// Namespaces that the sink refuses, and of which none alone takes too much memory, do not stop the cursor of the log together: good objects
// that change often go on. Once the sink takes all, all arrive, in order.
func TestRefusedNamespacesTogether(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		namespaces, objects int
		bound, memory       int  // bound is how many objects of a namespace may fail
		whole               bool // calls are refused, not records
	}{
		{2, 10, maxFailing, 256 << 10, false}, // each parks 0.3 of the memory
		{50, 2, maxFailing, 256 << 10, false},
		{200, 1, maxFailing, 256 << 10, false},
		{40, 40, 120, 16 << 20, false}, // each less than the bound of one
		{2, 40, 120, 16 << 20, true},
		{10, 40, 120, 16 << 20, true},
		{40, 40, 120, 16 << 20, true},
		{200, 1, maxFailing, 256 << 10, true},
	} {
		t.Run(fmt.Sprintf("%+v", test), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				memory := int64(test.memory)
				sink, b := &script{}, newLogbook()
				var mu sync.Mutex
				took := map[string]time.Time{}
				refuse := refuseBad(!test.whole)
				sink.set(func(call int, batch []sinks.Record) error {
					mu.Lock()
					for _, r := range batch {
						took[r.ID] = time.Now()
					}
					mu.Unlock()
					return refuse(call, batch)
				})
				p, stop := launch(sink, &letters{}, func(o *Options) {
					tenantLimits(100, 8)(o)
					spilling(b, memory, 1<<30)(o)
				})
				defer stop()
				boundFailing(p, test.bound)
				endCommits := b.commits(p, 200*time.Millisecond)
				defer endCommits()
				sent := map[string]time.Time{}
				refused, most, failing := 0, 0, 0
				cursor, moves := uint64(0), 0
				for n := range 50 * 60 * 3 { // 20 ms each
					d := change(t, fmt.Sprint("good-", n%50), n+1)
					sent[d.ID("c")] = time.Now()
					mustTake(t, p, d)
					for m := range 5 {
						if n < 800 || m == 0 {
							mustTake(t, p, changeIn(t, fmt.Sprint("tenant-", refused%test.namespaces), fmt.Sprint("bad-", refused/test.namespaces%test.objects), refused+1))
							refused++
						}
					}
					for m := range 60 {
						if n == 900 { // more at once than there is memory
							d := inNamespace(t, largeChange(t, fmt.Sprint("large-", m), n+1, 10<<10), "large")
							sent[d.ID("c")] = time.Now()
							mustTake(t, p, d)
						}
					}
					time.Sleep(20 * time.Millisecond)
					p.mu.Lock()
					if p.log.cursor > cursor || p.log.behind == 0 {
						cursor, moves = p.log.cursor, moves+1
					}
					most, failing = max(most, len(p.log.taken)), max(failing, len(p.backlog.failing))
					p.mu.Unlock()
					if s := p.Stats(); !s.Balanced() || s.Bytes > memory+maxBuffered {
						t.Fatalf("%+v", s)
					}
				}
				time.Sleep(10 * time.Second)
				var waits []time.Duration
				mu.Lock()
				for id, at := range sent {
					if took[id].IsZero() {
						t.Fatalf("%s did not arrive; %+v", id, p.Stats())
					}
					waits = append(waits, took[id].Sub(at))
				}
				mu.Unlock()
				slices.Sort(waits)
				p.mu.Lock()
				t.Logf("p99 %v, max %v; the cursor moved %d times, at most %d were taken; %d of the memory is parked, at most %d fail, %d namespaces are left behind",
					waits[len(waits)*99/100], waits[len(waits)-1], moves, most, p.budget.parked, failing, len(p.log.left))
				p.mu.Unlock()
				if waits[len(waits)*99/100] > 5*time.Second || most > 2000 || failing > 8*test.bound { // some were untried in memory
					t.Error("that is too much")
				}
				sink.set(nil)
				for deadline := time.Now().Add(10 * time.Minute); p.Stats().Waiting > 0 && time.Now().Before(deadline); {
					time.Sleep(100 * time.Millisecond)
				}
				endCommits()
				settled(t, p, b)
				ids := sink.storedIDs()
				checkOrder(t, slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return strings.Contains(id, "bad-") }))
				if len(ids) != len(sent)+refused || len(sink.overlapping()) > 0 {
					t.Errorf("%d of %d arrived, overlapping %v", len(ids), len(sent)+refused, sink.overlapping())
				}
			})
		})
	}
}

// offer offers a record of a snapshot until there is room for it.
func offer(ctx context.Context, t *testing.T, p *Pipeline, d *delta.Delta) {
	t.Helper()
	for {
		if ticket, ok := p.Offer(ctx, d, false); ok {
			p.Take(ticket)
			return
		}
		if err := p.Room(ctx); err != nil {
			t.Fatalf("there is no room for %s beside %+v", d.ID("c"), p.Stats())
		}
	}
}

// leaving returns a pipeline that has left the namespace "tenant" behind, with one object of it that fails.
func leaving(t *testing.T, b *logbook) (p *Pipeline, sink *script, stop func()) {
	sink = &script{}
	sink.set(refuseBad(true))
	p, stop = launch(sink, &letters{}, func(o *Options) {
		tenantLimits(100, 4)(o)
		spilling(b, 64<<20, 1<<30)(o)
	})
	boundFailing(p, 1)
	mustTake(t, p, changeIn(t, "tenant", "bad-0", 1))
	for n := range 20 { // else it could be the sink that fails
		mustTake(t, p, change(t, "first", n+1))
		time.Sleep(time.Second)
	}
	b.commit(p)
	return p, sink, stop
}

// What was left behind of an object is found, before a commit has written it and after.
func TestWaitingOfALeftNamespace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogbook()
		p, sink, stop := leaving(t, b)
		defer stop()
		refs := map[string]delta.Ref{}
		for n := range 6 {
			d := changeIn(t, "tenant", fmt.Sprint("bad-", n%3), n+2)
			mustTake(t, p, d)
			refs[d.Object.Name()] = d.Ref()
			mustTake(t, p, change(t, fmt.Sprint("good-", n), n+2))
		}
		for _, written := range []bool{false, true} {
			if written {
				b.commit(p)
			}
			time.Sleep(time.Second)
			for name, want := range map[string]int{"bad-0": 3, "bad-1": 2, "bad-2": 2} {
				w, err := p.Waiting(t.Context(), refs[name])
				behind := "other objects of its namespace: 1 fail, and its further changes wait on disk"
				if name == "bad-0" {
					behind = "its own first record, which failed"
				}
				if err != nil || w.Total != want || len(w.Records) != want || !strings.HasPrefix(w.Behind, behind) || w.Records[want-1].OnDisk != written {
					t.Errorf("%s, written %v: got %+v, %v", name, written, w, err)
				}
			}
			if s := p.Stats(); s.OnDisk != 6 || s.Waiting != 7 {
				t.Errorf("got %+v", s)
			}
		}
		sink.set(nil)
		time.Sleep(time.Minute)
		if w, err := p.Waiting(t.Context(), refs["bad-1"]); err != nil || w.Total != 0 || w.Behind != "" {
			t.Errorf("got %+v, %v, once all is delivered", w, err)
		}
		settled(t, p, b)
		checkOrder(t, sink.storedIDs())
	})
}

// A snapshot waits, and does not spin, while what is left behind of it has to wait for a commit.
func TestNoRoomForWhatIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLogbook()
		p, sink, stop := leaving(t, b)
		defer stop()
		version := 2
		for ; ; version++ {
			ticket, ok := p.Offer(t.Context(), inSnapshot(inNamespace(t, largeChange(t, "bad-0", version, 64<<10), "tenant")), false)
			if !ok {
				break
			}
			p.Take(ticket)
		}
		if s := p.Stats(); s.Bytes < maxBuffered/2 || s.Bytes > maxBuffered+4096 {
			t.Errorf("%d bytes wait for a commit", s.Bytes)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if p.Room(ctx) == nil {
			t.Error("there is room before the commit")
		}
		mustTake(t, p, change(t, "other", 2)) // others do not wait
		b.commit(p)
		if err := p.Room(t.Context()); err != nil {
			t.Error(err)
		}
		time.Sleep(5 * time.Second)
		if s := p.Stats(); s.Delivered != 21 || s.Bytes > 4096 {
			t.Errorf("got %+v", s)
		}
		sink.set(nil)
		time.Sleep(time.Minute)
		settled(t, p, b)
	})
}

// What was left behind, and a commit is writing, is delivered before that ends, once, and in order.
func TestLeftBehindWhileACommitIsWritten(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			b := newLogbook()
			p, sink, stop := leaving(t, b)
			defer stop()
			for version := 2; version < 12; version++ {
				mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", version%3), version))
				if version%4 == 0 {
					b.commit(p)
				}
			}
			b.write(p)
			mustTake(t, p, changeIn(t, "tenant", "bad-0", 12))
			sink.set(nil)
			time.Sleep(time.Minute)
			drain(t, p)
			if fails {
				p.Failed()
			} else {
				p.Committed(b.logged().Bytes)
			}
			b.commit(p)
			settled(t, p, b)
			checkOrder(t, sink.storedIDs())
			if n := len(sink.storedIDs()); n != 20+12 {
				t.Errorf("fails %v: %d arrived", fails, n)
			}
		})
	}
}

// What was sent from beyond the cursor, and is in the log until the next commit, is not sent again when its namespace, which was left
// behind since, is read: neither what was settled before nor what was under way.
func TestSentBeforeItWasLeftBehind(t *testing.T) {
	for _, settled := range []bool{true, false} {
		b := newLogbook()
		p, stop := launch(&script{}, &letters{}, nil)
		stop()
		p.options.Log, p.maxFailing = b, 1
		var entries []delta.Entry
		for n := range 4 {
			entries = append(entries, delta.Entry{Seq: uint64(n), Delta: changeIn(t, "tenant", fmt.Sprint("o-", n), n+1)})
		}
		p.log.behind, p.log.written, p.log.next, p.log.taken = 3, 4, 4, map[uint64]bool{3: settled}
		p.backlog.countStuck("tenant", 1, 0)
		if !settled {
			p.log.behind++
		}
		p.admit(entries)
		if !settled {
			i := p.logged(entries[3])
			p.counts.Waiting++
			p.settleAhead(&batch{objects: []*objectQueue{{}}, items: []*item{i}}, &outcome{results: []result{delivered}, errs: make([]*sinks.Error, 1)})
		}
		if left := p.log.left["tenant"]; left == nil || left.count != 3 || p.log.behind != 0 {
			t.Fatalf("settled %v: left are %+v, behind the cursor are %d", settled, left, p.log.behind)
		}
		p.backlog.countStuck("tenant", -1, 0)
		p.bringLeft(p.log.left["tenant"], entries, 4, true)
		if len(p.backlog.objects) != 3 || p.backlog.objects[entries[3].Delta.Ref()] != nil || len(p.log.left) != 0 {
			t.Errorf("settled %v: %d objects are in memory, and left are %v", settled, len(p.backlog.objects), p.log.left)
		}
	}
}

// An object of a namespace that is left behind is not sent from beyond the cursor: older changes of it may be left.
func TestNoCandidateIsLeftBehind(t *testing.T) {
	b := newLogbook()
	for n, name := range []string{"tenant", "shop"} {
		b.entries[uint64(n)] = delta.Entry{Seq: uint64(n), Delta: changeIn(t, name, "o", 1)}
		b.order = append(b.order, uint64(n))
	}
	p, stop := launch(&script{}, &letters{}, nil)
	stop()
	p.options.Log, p.breaker.tripped, p.log.taken = b, true, map[uint64]bool{}
	p.scan = newScan(0)
	entries, _ := b.Read(0, 1<<20)
	p.scan.note(entries, 2, nil)
	p.log.left["tenant"] = &leftBehind{}
	if p.usable(p.logged(entries[0])) {
		t.Error("it may be sent")
	}
	if err := p.chooseCandidate(0); err != nil || p.log.candidate == nil || p.log.candidate.seq != 1 {
		t.Errorf("got %v, %v", p.log.candidate, err)
	}
}

// A change that waits for memory when its namespace is left behind waits for the log from then on. It holds up no other change.
func TestLeftBehindWhileItWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, stop := launch(&script{}, &letters{}, spilling(newLogbook(), 1<<20, 1<<30))
		defer stop()
		reserved := make(chan string, 2)
		reserve := func(namespace string) {
			d := inNamespace(t, change(t, "x", 1), namespace)
			go func() {
				if ticket, err := p.Reserve(t.Context(), d, false); err == nil {
					p.Cancel(ticket)
					reserved <- namespace
				}
			}()
			synctest.Wait()
		}
		set := func(memory, buffered int64, failing int) {
			p.mu.Lock()
			p.budget.memory, p.budget.buffered = memory, buffered
			p.backlog.stuckOf["tenant"] = stuck{objects: failing}
			p.announceFreed()
			p.mu.Unlock()
			synctest.Wait()
		}
		set(1<<20, maxBuffered, 0)
		reserve("tenant")
		reserve("other")
		set(0, maxBuffered, p.maxFailing)
		select {
		case got := <-reserved:
			if got != "other" {
				t.Errorf("%s has room first", got)
			}
		default:
			t.Error("the other waits, though there is memory")
		}
		set(0, 0, p.maxFailing)
		if got := <-reserved; got != "tenant" {
			t.Error(got)
		}
	})
}

// A namespace of which little is parked is left behind only while much is of all, and is read on once less is.
func TestLeftBehindForOthers(t *testing.T) {
	p, stop := launch(&script{}, &letters{}, nil)
	stop()
	park := func(namespace string, share float64) {
		parked := int(share * float64(p.options.MaxBytes) / parkedSize)
		p.backlog.countStuck(namespace, 0, parked)
		p.budget.parked += int64(parked) * parkedSize
	}
	check := func(when string, leaves, waits bool) {
		t.Helper()
		if p.stuckIn("few", 1) != leaves || p.stuckIn("few", 0.5) != waits {
			t.Errorf("%s: left behind %t, and not read on %t", when, p.stuckIn("few", 1), p.stuckIn("few", 0.5))
		}
	}
	park("few", 0.01)
	park("much", 0.19)
	check("20 % is parked", false, false)
	park("other", 0.18)
	check("38 % is parked", true, true)
	park("other", -0.02)
	check("36 % is parked", false, true)
	park("other", -0.16)
	check("20 % is parked again", false, false)
	if !p.stuckIn("much", 0.5) {
		t.Error("a namespace of which more than half the bound is parked is read on")
	}
}
