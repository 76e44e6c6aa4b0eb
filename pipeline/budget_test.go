package pipeline

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// found is a delta of a snapshot.
func found(t testing.TB, n int) *delta.Delta {
	d := change(t, fmt.Sprintf("pod-%d", n), n+1)
	d.Type, d.Snapshot = delta.Added, true
	return d
}

// A snapshot that is delivered quickly is not read ahead of that by more than maxAhead.
func TestSnapshotKeepsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // on a busy machine it would not wait for the sink
		sink := &script{}
		p := start(t, sink, NoLetters{}, func(o *Options) { o.MaxBytes = 64 << 20 })
		most := int64(0)
		const n = 30_000 // some 27 MB
		for i := range n {
			mustTake(t, p, found(t, i))
			most = max(most, p.Stats().Bytes)
		}
		drain(t, p)
		if got := len(sink.storedIDs()); got != n {
			t.Errorf("%d of %d arrived", got, n)
		}
		if most > maxAhead+1<<20 {
			t.Errorf("%d bytes were waiting", most)
		}
		t.Logf("at most %d KiB were waiting", most>>10)
	})
}

// A snapshot waits for a sink that stands still once, and not for every delta; a live change never does.
func TestSnapshotOvertakesASinkThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the time is only what it waits
		sink := &script{}
		mended := make(chan struct{})
		sink.set(func(int, []sinks.Record) error { <-mended; return nil })
		p := start(t, sink, NoLetters{}, func(o *Options) { o.MaxBytes = 64 << 20 })
		begun := time.Now()
		n := 0
		for ; n%100 > 0 || p.Stats().Bytes < 3*maxAhead; n++ { // Stats looks at all objects
			mustTake(t, p, found(t, n))
		}
		took := time.Since(begun)
		if took < paceTimeout || took > 2*paceTimeout {
			t.Errorf("%d deltas waited %v", n, took)
		}
		close(mended)
		drain(t, p)
		if got := len(sink.storedIDs()); got != n {
			t.Errorf("%d of %d arrived", got, n)
		}
	})
}

// A large delta gets room, however many small ones of other watches want it.
func TestLargeDeltaGetsRoom(t *testing.T) {
	sink := &script{}
	sink.set(func(int, []sinks.Record) error { time.Sleep(time.Millisecond); return nil })
	p := start(t, sink, &letters{}, func(o *Options) {
		o.Limits.Concurrency, o.Limits.Linger = 1, 0
		o.MaxBytes = 64 << 10
	})
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	for w := range 3 {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_ = p.Delta(ctx, change(t, fmt.Sprint("s", w, n), 1))
			}
		})
	}
	defer load.Wait()
	defer cancel()
	eventually(t, "the load runs", func() bool { return len(sink.storedIDs()) > 100 })
	begun := time.Now()
	room, end := context.WithTimeout(t.Context(), 5*time.Second)
	defer end()
	if err := p.Delta(room, sized(t, "large", 1, 30<<10)); err != nil {
		t.Fatalf("it waited %v, while %d others went", time.Since(begun), len(sink.storedIDs()))
	}
	t.Logf("waited %v", time.Since(begun))
}

// A pipeline with little memory and a slow sink that spills does not slow the snapshot for the others.
func TestSlowSinkDoesNotPaceASnapshot(t *testing.T) {
	sink, b := &script{}, newLogbook()
	sink.set(func(int, []sinks.Record) error { time.Sleep(30 * time.Millisecond); return nil })
	p := start(t, sink, &letters{}, func(o *Options) {
		spilling(b, 64<<10, 1<<30)(o)
		o.Limits.Concurrency = 1
	})
	defer b.every(p)()
	begun := time.Now()
	const n = 3000
	for i := range n {
		d := sized(t, fmt.Sprint("o", i), i+1, 700)
		d.Type, d.Snapshot = delta.Added, true
		mustTake(t, p, d)
	}
	t.Logf("%v", time.Since(begun))
	if s := p.Stats(); s.Waiting < n/10 { // at the speed of the sink it would be what fits in memory
		t.Errorf("it was read at the speed of the sink: %+v", s)
	}
	sink.set(nil)
	drain(t, p)
}

// A large object counts in full, with the previous version that its record holds, and few of them are encoded at once.
func TestLargeObjectsCountInFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxBytes, text = 24 << 20, 1 << 20
		var mu sync.Mutex
		encoded := 0
		release := make(chan struct{})
		sink := &script{}
		sink.set(func(_ int, batch []sinks.Record) error {
			mu.Lock()
			for _, record := range batch {
				encoded += len(record.Body)
			}
			mu.Unlock()
			<-release
			return nil
		})
		p := start(t, sink, &letters{}, func(o *Options) {
			o.Diff, o.MaxBytes = shape.DiffOldObject, maxBytes
			o.Limits.Concurrency, o.Limits.Timeout = 16, time.Minute
		})
		taken := 0
		for full := false; !full; taken++ {
			d := sized(t, fmt.Sprint("o", taken), 2, text)
			d.Old = sized(t, fmt.Sprint("o", taken), 1, text).Object
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- p.Delta(ctx, d) }()
			eventually(t, "it is taken, or the backlog is full", func() bool {
				p.mu.Lock()
				defer p.mu.Unlock()
				full = p.budget.full
				return full || p.counts.Received == uint64(taken+1)
			})
			if full {
				cancel()
			}
			if err := <-done; err != nil {
				taken--
			}
			cancel()
		}
		if size := taken * 2 * text; size > maxBytes || size < maxBytes/2 {
			t.Errorf("%d objects of %d bytes wait", taken, 2*text)
		}
		time.Sleep(time.Second)
		mu.Lock()
		if encoded < maxBytes/4 || encoded > maxBytes/2+2*text+16<<10 {
			t.Errorf("%d bytes of records at once", encoded)
		}
		mu.Unlock()
		close(release)
		drain(t, p)
	})
}
