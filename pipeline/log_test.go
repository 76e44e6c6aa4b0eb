package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// logbook is a log in memory that outlives pipelines, and the commits that write it.
type logbook struct {
	mu      sync.Mutex
	entries map[uint64]delta.Entry
	order   []uint64 // of the entries, and of some that were removed
	bytes   map[uint64]int64
	next    uint64
	readErr error
	full    bool // commits fail
	lies    bool // they fail, and are written all the same
	soon    chan struct{}

	committing sync.Mutex
}

func newLogbook() *logbook {
	return &logbook{entries: map[uint64]delta.Entry{}, bytes: map[uint64]int64{}, soon: make(chan struct{}, 1)}
}

func (b *logbook) Commit() {
	select {
	case b.soon <- struct{}{}:
	default:
	}
}

func (b *logbook) ReadFlow(flow string, from uint64, maxBytes int) (entries []delta.Entry, more bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	total := 0
	first, _ := slices.BinarySearch(b.order, from)
	for _, seq := range b.order[first:] {
		if e, ok := b.entries[seq]; !ok || e.Flow != flow {
			continue
		}
		if total += int(b.bytes[seq]); total > maxBytes && len(entries) > 0 {
			more = true
			break
		}
		entries = append(entries, b.entries[seq])
	}
	return entries, more, b.readErr // some can be read
}

func (b *logbook) flows() (flows []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if !slices.Contains(flows, e.Flow) {
			flows = append(flows, e.Flow)
		}
	}
	slices.Sort(flows)
	return flows
}

// write is a commit up to the disk, and reports whether it got there, if that is certain; neither Committed nor Failed
// has been called then.
func (b *logbook) write(p *Pipeline) bool {
	change := p.Capture()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full && !b.lies {
		return false
	}
	var remove []uint64
	for _, key := range change.Remove {
		if e, ok := b.entries[key.Seq]; ok && e.Flow != key.Flow {
			panic("the key of a removed entry is of another flow")
		}
		remove = append(remove, key.Seq)
	}
	if change.Redo {
		first, _ := slices.BinarySearch(b.order, change.From)
		remove = append(remove, b.order[first:]...)
		b.order = b.order[:first]
	}
	for _, seq := range remove {
		delete(b.entries, seq)
		delete(b.bytes, seq)
	}
	for _, e := range change.Append {
		b.entries[e.Seq] = e
		b.order = append(b.order, e.Seq)
		b.bytes[e.Seq] = noticeSize
		if e.Delta != nil {
			b.bytes[e.Seq] = e.Delta.Size()
		}
		b.next = max(b.next, e.Seq+1)
	}
	for _, a := range change.Attempts {
		if e, ok := b.entries[a.Seq]; ok {
			e.Attempts, e.Failed = a.Attempts, a.Failed
			b.entries[a.Seq] = e
		} else {
			panic("attempts of an entry that is not in the log")
		}
	}
	return !b.full
}

// commit writes a commit, and reports whether it succeeded.
func (b *logbook) commit(p *Pipeline) bool {
	b.committing.Lock()
	defer b.committing.Unlock()
	written := b.write(p)
	if written {
		p.Committed(b.logged().Bytes)
	} else {
		p.Failed()
	}
	return written
}

func (b *logbook) logged() delta.LogSize {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := delta.LogSize{Entries: uint64(len(b.entries)), Next: b.next}
	for _, n := range b.bytes {
		l.Bytes += n
	}
	return l
}

func (b *logbook) set(full bool, readErr error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full, b.lies, b.readErr = full, false, readErr
}

// lie has commits fail and be written all the same.
func (b *logbook) lie() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.full, b.lies = true, true
}

// every commits whenever asked to, and otherwise every millisecond, until stop.
func (b *logbook) every(p *Pipeline) (stop func()) { return b.commits(p, time.Millisecond) }

// commits commits on request, and otherwise at intervals, until stop.
func (b *logbook) commits(p *Pipeline, interval time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
			case <-b.soon:
			case <-ctx.Done():
				return
			}
			b.commit(p)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// spilling adjusts options for a pipeline with a log.
func spilling(b *logbook, maxBytes, maxDiskBytes int64) func(*Options) {
	return func(o *Options) {
		o.Log, o.Logged, o.Flows, o.Spill, o.MaxBytes, o.MaxDiskBytes = b, b.logged(), b.flows(), true, maxBytes, maxDiskBytes
	}
}

func settled(t testing.TB, p *Pipeline, b *logbook) {
	t.Helper()
	drain(t, p)
	b.commit(p)
	if s := p.Stats(); s.OnDisk != 0 || s.LogBytes != 0 || b.logged().Entries != 0 {
		t.Errorf("the log holds what is settled: %+v, %+v", s, b.logged())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.budget.memory != 0 || p.budget.buffered != 0 || p.budget.encoded != 0 || p.log.behind != 0 {
		t.Errorf("room is missing: %+v, behind %d", p.budget, p.log.behind)
	}
	for watch, w := range p.counts.watches {
		if w.before != 0 || w.after != 0 || w.snapshots != 0 {
			t.Errorf("of %s count as waiting: %+v", watch, w)
		}
	}
}

// Each object's deltas keep their order from memory through the log and back into memory, and memory keeps its bound.
func TestSpillKeepsOrderAndBound(t *testing.T) {
	const maxBytes, total, objects = 16 << 10, 3000, 7
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p := start(t, sink, &letters{}, spilling(b, maxBytes, 1<<30))
	defer b.every(p)()
	worst := int64(0)
	take := func(from, to int) {
		for version := from; version <= to; version++ {
			mustTake(t, p, change(t, fmt.Sprint("o", version%objects), version))
			s := p.Stats()
			worst = max(worst, s.Bytes)
			if !s.Balanced() {
				t.Fatalf("%+v", s)
			}
		}
	}
	take(1, total)
	if s := p.Stats(); s.OnDisk < total/2 || s.Waiting != total {
		t.Errorf("got %+v", s)
	}
	eventually(t, "what is on disk leaves memory", func() bool { return p.Stats().Bytes <= maxBytes })
	sink.set(nil)
	take(total+1, 2*total)
	settled(t, p, b)
	ids := sink.storedIDs()
	if len(ids) != 2*total {
		t.Errorf("got %d records, want %d", len(ids), 2*total)
	}
	checkOrder(t, ids)
	if worst > maxBytes+maxBuffered {
		t.Errorf("memory held %d", worst)
	}
	take(2*total+1, 2*total+1) // nothing is behind the cursor: it takes the short way
	if s := p.Stats(); s.OnDisk != 0 {
		t.Errorf("got %+v", s)
	}
	settled(t, p, b)
}

func TestFullDiskSpaceBlocks(t *testing.T) {
	const maxBytes, maxDiskBytes = 8 << 10, 32 << 10
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p := start(t, sink, &letters{}, spilling(b, maxBytes, maxDiskBytes))
	defer b.every(p)()
	const largest = 2 << 10 // change: with less room than that none fits
	taken := 0
	for deadline := time.Now().Add(time.Minute); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		err := p.Delta(ctx, change(t, fmt.Sprint("o", taken%5), taken+1))
		cancel()
		if err == nil {
			taken++
			continue
		}
		if s := p.Stats(); s.LogBytes > maxDiskBytes-largest { // else it waits for a commit, on a busy machine
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("took %d, and the log is not full: %+v", taken, s)
		}
	}
	// What is in memory is in the log as well, and counts only once it is written.
	if s := p.Stats(); s.LogBytes > maxDiskBytes+maxBytes || s.Waiting != uint64(taken) || taken < 20 {
		t.Errorf("took %d: %+v", taken, s)
	}
	sink.set(nil)
	mustTake(t, p, change(t, "o0", taken+1))
	settled(t, p, b)
	checkOrder(t, sink.storedIDs())
}

// A restart delivers the log first, in order per object.
func TestRestartDeliversTheLogFirst(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p, stop := launch(sink, &letters{}, spilling(b, 4<<10, 1<<30))
	defer stop()
	const total = 60
	for version := 1; version <= total; version++ {
		mustTake(t, p, change(t, fmt.Sprint("o", version%4), version))
		if version == total/2 {
			gap := &delta.Gap{Watch: "w", Resource: pods, From: "1", To: "30", Observed: time.Now()}
			if err := p.Gap(t.Context(), gap); err != nil {
				t.Fatal(err)
			}
		}
	}
	b.commit(p)
	stop()
	if l := b.logged(); l.Entries != total+1 {
		t.Fatalf("got %+v", l)
	}

	p, stop = launch(sink, &letters{}, spilling(b, 4<<10, 1<<30))
	defer stop()
	if s := p.Stats(); !s.Balanced() || s.Restored+s.GapsWaiting != total+1 { // reading the log has begun
		t.Errorf("got %+v", s)
	}
	mustTake(t, p, change(t, "o0", total+1))
	stopCommits := b.every(p)
	defer stopCommits()
	sink.set(func(_ int, batch []sinks.Record) error { // it takes all but the last one of the last run, and what follows that
		errs := make([]error, len(batch))
		for n, r := range batch {
			if r.ID == "c/uid-o0/60/MODIFIED" || r.ID == "c/uid-o0/61/MODIFIED" {
				errs[n] = errDown
			}
		}
		return &sinks.BatchError{Errs: errs}
	})
	eventually(t, "the others", func() bool { return len(sink.storedIDs()) >= total })
	if err := p.Settled(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if p.Settled(soon, "w") == nil {
		t.Error("it counts as settled while a record of the last run is not")
	}
	sink.set(nil)
	settled(t, p, b)
	if err := p.Settled(t.Context(), "w"); err != nil {
		t.Error(err)
	}
	if s := p.Stats(); s.Restored != total || s.Received != 1 || s.Delivered != total+1 || s.GapsSettled != 1 {
		t.Errorf("got %+v", s)
	}
	ids := sink.storedIDs()
	gap := slices.IndexFunc(ids, func(id string) bool { return strings.HasSuffix(id, "/GAP") })
	checkOrder(t, slices.Concat(ids[:gap], ids[gap+1:]))
}

// What waits was filtered and transformed before an edit; its format is the new one.
func TestWhatWaitsThroughAnEdit(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p, stop := launch(sink, &letters{}, spilling(b, 4<<10, 1<<30))
	defer stop()
	d := change(t, "o", 1)
	mustTake(t, p, d)
	b.commit(p)
	stop()

	move, err := fieldpath.NewMove(fieldpath.Of("spec"), fieldpath.Of("renamed"))
	if err != nil {
		t.Fatal(err)
	}
	var body string
	sink.set(func(_ int, batch []sinks.Record) error {
		body = string(batch[0].Body)
		return nil
	})
	p, stop = launch(sink, &letters{}, func(o *Options) {
		spilling(b, 4<<10, 1<<30)(o)
		o.Format, o.Filters, o.Transforms = shape.FormatRaw, []shape.Filter{shape.TypesFilter{delta.Added}}, []shape.Transform{shape.RenameTransform{move}}
	})
	defer stop()
	defer b.every(p)()
	settled(t, p, b)
	stop()
	if want := string(d.Object.JSON()); body != want {
		t.Errorf("got %s, want %s", body, want)
	}
}

// What a commit wrote that failed is not read again and again until the next one: that would take a core, and here all the time there is.
func TestWhatAFailedCommitWroteIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(func(int, []sinks.Record) error { return errDown })
		p := start(t, sink, &letters{}, spilling(b, 32<<10, 1<<30))
		taken := 0
		take := func(count int, namespace string) {
			for range count {
				taken++
				mustTake(t, p, inNamespace(t, sized(t, fmt.Sprint("o", taken), taken, 5000), namespace))
			}
		}
		take(20, "shop")
		take(1, "other") // what is written ends with another flow
		b.commit(p)
		take(40, "shop")
		b.lie()
		b.commit(p)
		sink.set(nil)
		time.Sleep(time.Minute)
		b.set(false, nil)
		b.commit(p)
		time.Sleep(time.Minute)
		settled(t, p, b)
	})
}

// A gap that waits on disk is read although memory is kept for a large record: nothing else is read before the gap.
func TestGapIsReadWhileALargeRecordWaitsForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(func(int, []sinks.Record) error { return errDown })
		p := start(t, sink, &letters{}, spilling(b, 2<<10, 1<<30))
		defer b.every(p)()
		const small = 10
		for version := 1; version <= small; version++ {
			mustTake(t, p, change(t, fmt.Sprint("small", version), version))
		}
		mustTake(t, p, inNamespace(t, sized(t, "large", small+1, 2<<10), "other"))
		time.Sleep(10 * time.Millisecond) // in the bubble: a commit has written it, and it finds no room in memory
		if err := p.Gap(t.Context(), &delta.Gap{Watch: "w", Resource: pods, From: "11", To: "12", Observed: time.Now()}); err != nil {
			t.Fatal(err)
		}
		mustTake(t, p, change(t, "small1", small+3))
		sink.set(nil)
		settled(t, p, b)
		if got := len(sink.storedIDs()); got != small+3 {
			t.Errorf("%d records arrived, want %d", got, small+3)
		}
	})
}

// heldLog is a log of which the reads of one flow wait until held is closed.
type heldLog struct {
	*logbook
	flow string
	held chan struct{}
}

func (h heldLog) ReadFlow(flow string, from uint64, maxBytes int) ([]delta.Entry, bool, error) {
	if flow == h.flow {
		<-h.held
	}
	return h.logbook.ReadFlow(flow, from, maxBytes)
}

// A snapshot may ask for room while the only flow that waits for memory is being read.
func TestRoomWhileTheLogIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(func(int, []sinks.Record) error { return errDown })
		held := make(chan struct{})
		release := sync.OnceFunc(func() { close(held) })
		p := start(t, sink, &letters{}, func(o *Options) {
			spilling(b, 2<<10, 1<<30)(o)
			o.Log = heldLog{b, "other", held}
		})
		t.Cleanup(release) // before the pipeline is stopped, also if the test fails
		defer b.every(p)()
		mustTake(t, p, change(t, "small", 1))
		mustTake(t, p, inNamespace(t, sized(t, "large", 2, 2<<10), "other"))
		time.Sleep(10 * time.Millisecond)
		sink.set(nil)
		time.Sleep(time.Second)
		if s := p.Stats(); s.Bytes != 0 || s.OnDisk != 1 {
			t.Fatalf("the large record is not being read: %+v", s)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Room(ctx); err != nil {
			t.Errorf("no room for a small record: %v", err)
		}
		release()
		settled(t, p, b)
	})
}

// A log that cannot be read holds its part back until it can, and is not given up.
func TestLogThatCannotBeRead(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p, stop := launch(sink, &letters{}, spilling(b, 4<<10, 1<<30))
	defer stop()
	for version := 1; version <= 30; version++ {
		mustTake(t, p, change(t, fmt.Sprint("o", version%3), version))
	}
	b.commit(p)
	stop()
	sink.set(nil)
	b.set(false, errors.New("input/output error"))
	p, stop = launch(sink, &letters{}, spilling(b, 4<<10, 1<<30))
	defer stop()
	b.commit(p)
	eventually(t, "what could be read is delivered", func() bool { return p.Stats().Delivered >= 3 })
	if s := p.Stats(); s.Waiting == 0 || !s.Balanced() {
		t.Errorf("got %+v", s)
	}
	b.set(false, nil)
	settled(t, p, b) // without commits and hand-overs the reader continues by itself
	checkOrder(t, sink.storedIDs())
}

// While commits fail, deliveries go on; what is too much for memory waits, and nothing is lost.
func TestDiskFull(t *testing.T) {
	const maxBytes = 8 << 10
	sink, b := &script{}, newLogbook()
	b.set(true, nil)
	p := start(t, sink, &letters{}, spilling(b, maxBytes, 1<<30))
	defer b.every(p)()
	for version := 1; version <= 500; version++ {
		mustTake(t, p, change(t, fmt.Sprint("o", version%3), version))
	}
	sink.set(func(int, []sinks.Record) error { return errDown })
	last := 500
	next := func() error { // each has its time: that of all might be over on a busy machine before the first
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return p.Delta(ctx, change(t, fmt.Sprint("o", (last+1)%3), last+1))
	}
	for next() == nil {
		last++
		if s := p.Stats(); s.Bytes > maxBytes+maxBuffered || !s.Balanced() {
			t.Fatalf("got %+v", s)
		}
	}
	if last == 500 {
		t.Error("nothing is buffered before the log")
	}
	sink.set(nil)
	b.set(false, nil)
	settled(t, p, b)
	ids := sink.storedIDs()
	if len(ids) != last {
		t.Errorf("got %d records, want %d", len(ids), last)
	}
	checkOrder(t, ids)
}

// A pipeline that has caught up needs the disk no more, however steady the load.
func TestCaughtUpPipelineLeavesTheDisk(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p := start(t, sink, &letters{}, spilling(b, 4<<10, 1<<30))
	version := 0
	for ; version < 50; version++ {
		mustTake(t, p, change(t, fmt.Sprint("o", version%3), version+1))
	}
	b.commit(p)
	for ; version < 60; version++ { // these no commit writes
		mustTake(t, p, change(t, fmt.Sprint("o", version%3), version+1))
	}
	sink.set(nil)
	eventually(t, "all is delivered without another commit", func() bool { return p.Stats().Delivered == 60 })
	if s := p.Stats(); s.OnDisk != 0 || s.Bytes != 0 || !s.Balanced() {
		t.Errorf("got %+v", s)
	}
	settled(t, p, b)
	checkOrder(t, sink.storedIDs())
}

// What is settled between Capture and Committed leaves the log in the next commit.
func TestSettledWhileACommitIsWritten(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p := start(t, sink, &letters{}, spilling(b, 1<<20, 1<<30))
	mustTake(t, p, change(t, "a", 1))
	mustTake(t, p, change(t, "b", 2))
	if !b.write(p) {
		t.Fatal("not written")
	}
	sink.set(nil)
	drain(t, p)
	p.Committed(b.logged().Bytes)
	if n := b.logged().Entries; n != 2 {
		t.Errorf("the log holds %d, want 2", n)
	}
	mustTake(t, p, change(t, "a", 3)) // settled before any commit sees it
	drain(t, p)
	settled(t, p, b)
	if b.logged().Next > 2 {
		t.Errorf("what was settled at once is in the log: %+v", b.logged())
	}
}

// A commit that failed is captured anew, whether it reached the disk or not: of what it held, the next one writes what
// is not settled by then, and what was to leave the log leaves it.
func TestFailedCommitIsCapturedAnew(t *testing.T) {
	for name, fail := range map[string]func(*logbook){
		"not on disk": func(b *logbook) { b.set(true, nil) },
		"on disk":     (*logbook).lie,
	} {
		t.Run(name, func(t *testing.T) {
			sink, b := &script{}, newLogbook()
			accept := func(names ...string) {
				sink.set(func(_ int, batch []sinks.Record) error {
					errs := make([]error, len(batch))
					for n, r := range batch {
						if !slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(r.Key, "/"+name) }) {
							errs[n] = errDown
						}
					}
					return &sinks.BatchError{Errs: errs}
				})
			}
			accept()
			p := start(t, sink, &letters{}, spilling(b, 1<<20, 1<<30))
			delivered := func(n uint64) {
				t.Helper()
				eventually(t, "what the sink takes is delivered", func() bool { return p.Stats().Delivered == n })
			}
			mustTake(t, p, change(t, "a", 1))
			b.commit(p)
			accept("a") // it leaves the log with a commit that fails
			delivered(1)
			mustTake(t, p, change(t, "b", 2))
			mustTake(t, p, change(t, "c", 3))
			mustTake(t, p, change(t, "d", 4))
			fail(b)
			if b.write(p) {
				t.Fatal("written")
			}
			accept("b") // while it is written
			delivered(2)
			p.Failed()
			accept("c") // before the next one
			delivered(3)
			b.commit(p)
			b.set(false, nil)
			b.commit(p)
			if left := slices.Sorted(maps.Keys(b.entries)); !slices.Equal(left, []uint64{3}) {
				t.Errorf("the log holds %d, want that of d, 3", left)
			}
			accept("d")
			settled(t, p, b)
		})
	}
}

// While commits fail, no more is kept for them than what waits.
func TestFailingCommitsTakeNoMemory(t *testing.T) {
	sink, b := &script{}, newLogbook()
	p := start(t, sink, &letters{}, spilling(b, 1<<20, 1<<30))
	b.lie()
	for round := range 200 {
		block := make(chan struct{})
		var tried sync.Map
		sink.set(func(_ int, batch []sinks.Record) error { // the first record of each batch fails once
			<-block
			errs := make([]error, len(batch))
			for n, r := range batch {
				if _, again := tried.LoadOrStore(r.ID, nil); !again && n == 0 {
					errs[n] = errDown
				}
			}
			return &sinks.BatchError{Errs: errs}
		})
		for n := range 10 {
			mustTake(t, p, change(t, fmt.Sprint("o", n), round*10+n+1))
		}
		if b.write(p) { // captured, then settled, then failed
			t.Fatal("written")
		}
		close(block)
		drain(t, p)
		p.Failed()
	}
	p.mu.Lock()
	kept := len(p.log.removable) + len(p.log.fresh) + len(p.log.captured)
	attempts := len(p.log.attempted) + len(p.log.attempting)
	p.mu.Unlock()
	if kept > 2000 { // fresh is swept from 1024 on
		t.Errorf("%d things are kept for the next commit", kept)
	}
	if attempts > 0 {
		t.Errorf("the attempts of %d settled records are kept for the next commit", attempts)
	}
	b.set(false, nil)
	settled(t, p, b)
}

func TestTicketsGiveTheirRoomBack(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { return errDown })
	p := start(t, sink, &letters{}, spilling(b, 2<<10, 1<<30))
	p.Take(Ticket{})
	p.Cancel(Ticket{})
	var tickets []Ticket
	for n := range 6 { // the last ones are for the log
		ticket, err := p.Reserve(t.Context(), change(t, fmt.Sprint("o", n), n+1), true)
		if err != nil {
			t.Fatal(err)
		}
		tickets = append(tickets, ticket)
	}
	// Taken in another order than reserved: what has room in memory goes to the log behind what has none.
	p.Take(tickets[5])
	p.Take(tickets[0])
	for _, ticket := range tickets[1:5] {
		p.Cancel(ticket)
	}
	b.commit(p)
	if s := p.Stats(); s.OnDisk+s.Waiting < 2 || s.Waiting != 2 || s.Bytes > 2<<10 {
		t.Errorf("got %+v", s)
	}
	sink.set(nil)
	b.commit(p)
	settled(t, p, b)
}

// The age of the oldest change is reported whether it is in memory, in the log, or between.
func TestOldestOnDisk(t *testing.T) {
	sink, b := &script{}, newLogbook()
	p := start(t, sink, &letters{}, spilling(b, 1<<10, 1<<30))
	block := make(chan struct{})
	sink.set(func(int, []sinks.Record) error { <-block; return nil })
	for version := 1; version <= 3; version++ {
		mustTake(t, p, change(t, "a", version))
	}
	close(block)
	eventually(t, "memory is empty", func() bool { return p.Stats().Delivered > 0 })
	if s := p.Stats(); s.Waiting > 0 && time.Since(s.Oldest) > time.Minute {
		t.Errorf("got %+v", s)
	}
	defer b.every(p)()
	settled(t, p, b)
}

// partly fails a third of the records by chance, keeping the rule that nothing is acknowledged after a failure of the
// same key.
func partly(seed uint64) func(int, []sinks.Record) error {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	return func(_ int, batch []sinks.Record) error {
		mu.Lock()
		defer mu.Unlock()
		errs, failed := make([]error, len(batch)), map[string]bool{}
		for n, record := range batch {
			if failed[record.Key] || random.IntN(3) == 0 {
				errs[n], failed[record.Key] = errDown, true
			}
		}
		if len(failed) > 0 {
			return &sinks.BatchError{Errs: errs}
		}
		return nil
	}
}

// Whatever the sink, the disk and the process do, each delta is delivered, in order per object, memory keeps its
// bound, and the counts balance.
func TestLogModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sink, b := &script{}, newLogbook()
		maxBytes := int64(rapid.SampledFrom([]int{1, 3 << 10, 32 << 10}).Draw(rt, "memory"))
		maxDisk := int64(rapid.SampledFrom([]int{8 << 10, 1 << 30}).Draw(rt, "disk"))
		spill := rapid.Bool().Draw(rt, "spill")
		adjust := func(o *Options) {
			spilling(b, maxBytes, maxDisk)(o)
			o.Spill = spill
			o.Retry = Retry{Initial: 100 * time.Microsecond, Max: time.Millisecond}
			o.Limits.Linger = 0
		}
		p, stop := launch(sink, &letters{}, adjust)
		rt.Cleanup(func() { stop() })
		version := 0
		// The versions that a commit secured, and those that were handed over since, of which some are on disk.
		var secured, fresh []int
		onDisk := 0
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2, 3:
				for range rapid.IntRange(1, 10).Draw(rt, "deltas") {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
					err := p.Delta(ctx, change(t, fmt.Sprint("o", (version+1)%3), version+1))
					cancel()
					if err != nil {
						break
					}
					version++
					fresh = append(fresh, version)
				}
			case 4:
				sink.set(func(int, []sinks.Record) error { return errDown })
			case 5:
				sink.set(partly(rapid.Uint64().Draw(rt, "seed")))
			case 6:
				sink.set(nil)
			case 7, 8:
				switch rapid.IntRange(0, 5).Draw(rt, "disk") {
				case 0:
					b.set(true, nil)
				case 1:
					b.lie()
					onDisk = len(fresh)
				default:
					b.set(false, nil)
				}
				if b.commit(p) {
					secured, fresh, onDisk = append(secured, fresh...), nil, 0
				}
			case 9: // killed
				stop()
				// What no commit wrote comes again: the position is behind it.
				secured = append(secured, fresh[:onDisk]...)
				version -= len(fresh) - onDisk
				fresh, onDisk = nil, 0
				p, stop = launch(sink, &letters{}, adjust)
			}
			if s := p.Stats(); !s.Balanced() || s.Bytes > maxBytes+maxBuffered {
				rt.Fatalf("%+v", s)
			}
		}
		b.set(false, nil)
		sink.set(nil)
		stopCommits := b.every(p)
		defer stopCommits()
		settled(t, p, b)
		ids := sink.storedIDs()
		checkOrder(t, ids)
		for _, v := range append(secured, fresh...) {
			id := change(t, fmt.Sprint("o", v%3), v).ID("c")
			if !slices.Contains(ids, id) {
				rt.Fatalf("%s is missing: %v\nsecured %v, fresh %v", id, ids, secured, fresh)
			}
		}
	})
}

// A poisoned object that changes often does not fill the backlog: its records leave memory once they are in
// the log, so that others flow, and come in order once the record gets through.
func TestPoisonedObjectThatChangesOften(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n, r := range batch {
			if strings.HasSuffix(r.Key, "/poison") {
				errs[n] = errDown
			}
		}
		return &sinks.BatchError{Errs: errs}
	})
	const memory = 2 << 20
	p := start(t, sink, &letters{}, spilling(b, memory, 1<<30))
	const changes = 200 // of each; of the bad one more than there is memory for
	for n := range changes {
		mustTake(t, p, sized(t, "poison", n+1, 12<<10))
		mustTake(t, p, change(t, fmt.Sprint("o", n%7), n+1))
		if n%10 == 9 {
			b.commit(p)
		}
	}
	eventually(t, "all others are delivered", func() bool {
		b.commit(p)
		return len(sink.storedIDs()) == changes && p.Stats().Waiting == changes // the last one is settled, too
	})
	if s := p.Stats(); s.Bytes > memory || s.Waiting != changes || s.OnDisk != 0 {
		t.Errorf("got %d bytes, %d waiting, %d to be read", s.Bytes, s.Waiting, s.OnDisk)
	}
	sink.set(nil)
	drain(t, p)
	ids := sink.storedIDs()
	checkOrder(t, ids)
	if len(ids) != 2*changes {
		t.Errorf("%d records stored, want %d", len(ids), 2*changes)
	}
	b.commit(p)
	if left := b.logged(); left.Entries != 0 {
		t.Errorf("%d entries are left in the log", left.Entries)
	}
}

// What was unloaded of an object that fails stays unloaded while the log cannot be read, and is delivered in order once it can.
func TestUnloadedRecordsThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(func(int, []sinks.Record) error { return errDown })
		p := start(t, sink, &letters{}, spilling(b, 1<<20, 1<<30))
		mustTake(t, p, change(t, "bad", 1))
		mustTake(t, p, change(t, "bad", 2))
		time.Sleep(time.Second)
		b.commit(p)
		b.set(false, errors.New("input/output error"))
		time.Sleep(time.Minute)
		w, err := p.Waiting(t.Context(), change(t, "bad", 1).Ref())
		if err != nil || w.Total != 2 || w.Records[1].ResourceVersion != "2" || !w.Records[1].OnDisk {
			t.Errorf("got %+v, %v", w, err)
		}
		b.set(false, nil)
		sink.set(nil)
		settled(t, p, b)
		checkOrder(t, sink.storedIDs())
	})
}

// countedLog counts the reads of a logbook.
type countedLog struct {
	*logbook
	reads atomic.Int64
}

func (c *countedLog) ReadFlow(flow string, from uint64, maxBytes int) ([]delta.Entry, bool, error) {
	c.reads.Add(1)
	return c.logbook.ReadFlow(flow, from, maxBytes)
}

// An object for which there is no memory is read from the log once more when there is, and not over and over until then.
func TestLargeObjectIsNotReadOverAndOver(t *testing.T) {
	const maxBytes, small = 128 << 10, 10
	sink, b := &script{}, newLogbook()
	release := make(chan struct{})
	sink.set(func(int, []sinks.Record) error { <-release; return nil })
	log := &countedLog{logbook: b}
	p := start(t, sink, &letters{}, func(o *Options) {
		spilling(b, maxBytes, 1<<30)(o)
		o.Log, o.Limits.MaxRecords, o.Limits.Concurrency, o.Limits.Timeout = log, 1, 1, time.Minute
	})
	for n := range small {
		mustTake(t, p, sized(t, fmt.Sprint("small-", n), n+1, 11<<10))
	}
	mustTake(t, p, sized(t, "large", small+1, 2*maxBytes))
	defer b.every(p)()
	for left := small; left > 0; left-- { // from half of the memory on, the log is looked at
		release <- struct{}{}
		eventually(t, "one more is delivered", func() bool { return len(sink.storedIDs()) == small-left+1 })
	}
	close(release)
	drain(t, p)
	if reads := log.reads.Load(); reads > small {
		t.Errorf("the log was read %d times", reads)
	}
}
