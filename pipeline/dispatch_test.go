package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// sized is a change whose object has so many bytes more.
func sized(t testing.TB, name string, version, bytes int) *delta.Delta {
	t.Helper()
	d := change(t, name, version)
	object, err := delta.NewObject([]byte(strings.Replace(string(d.Object.JSON()), `"spec":{}`, `"spec":{"x":"`+strings.Repeat("x", bytes)+`"}`, 1)))
	if err != nil {
		t.Fatal(err)
	}
	d.Object = object
	return d
}

// A batch that holds maxBytes is full: it need not wait for the end of the linger.
func TestFullBytesEndTheLinger(t *testing.T) {
	sink := &script{}
	p := start(t, sink, &letters{}, func(o *Options) {
		o.Limits.MaxRecords, o.Limits.MaxBytes, o.Limits.Linger = 100, 8<<10, time.Hour
	})
	mustTake(t, p, sized(t, "first", 1, 100))
	time.Sleep(50 * time.Millisecond) // it lingers
	for n := range 6 {
		mustTake(t, p, sized(t, fmt.Sprint("large-", n), 1, 3<<10))
	}
	eventually(t, "the full batch is sent", func() bool { return len(sink.storedIDs()) > 0 })
}

// A batch that holds maxRecords is full, of one object or of many.
func TestFullRecordsEndTheLinger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &script{}
		p, stop := launch(sink, &letters{}, func(o *Options) { o.Limits.MaxRecords, o.Limits.Linger = 10, time.Hour })
		defer stop()
		mustTake(t, p, change(t, "first", 1))
		time.Sleep(10*lingerPollInterval + lingerPollInterval/2) // it lingers, and looks again later
		for n := range 20 {
			mustTake(t, p, change(t, "hot", n+1))
		}
		time.Sleep(time.Second)
		if len(sink.storedIDs()) == 0 {
			t.Error("the full batch waits")
		}
	})
}

// What does not fit ends the linger too: the batch takes no more.
func TestNothingFitsEndsTheLinger(t *testing.T) {
	sink := &script{}
	p := start(t, sink, &letters{}, func(o *Options) {
		o.Limits.MaxRecords, o.Limits.MaxBytes, o.Limits.Linger, o.Limits.Concurrency = 100, 8<<10, time.Hour, 1
	})
	for n := range 4 {
		mustTake(t, p, sized(t, fmt.Sprint("large-", n), 1, 5<<10))
	}
	eventually(t, "all is sent but the last one, which lingers", func() bool { return len(sink.storedIDs()) == 3 })
}

// checking is a sink whose receiver compares each body with its id, at the end of the call, after a while, and fails at random.
type checking struct {
	mu    sync.Mutex
	wrong []string
	got   []string
}

func (c *checking) Close(context.Context) error { return nil }

func (c *checking) Deliver(_ context.Context, batch []sinks.Record) error {
	time.Sleep(time.Duration(rand.N(2000)) * time.Microsecond)
	errs := make([]error, len(batch))
	failed := map[string]bool{}
	bad := rand.N(4) == 0
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, r := range batch {
		if !strings.Contains(string(r.Body), `"id":"`+r.ID+`"`) || !strings.HasSuffix(string(r.Body), "}}") {
			c.wrong = append(c.wrong, r.ID+" "+string(r.Body))
		}
		switch {
		case failed[r.Key], bad && rand.N(3) == 0:
			errs[n], failed[r.Key] = errDown, true
		case rand.N(200) == 0:
			errs[n], failed[r.Key] = sinks.Permanent(sinks.ReasonRejected, errDown), true
		default:
			c.got = append(c.got, r.ID)
		}
	}
	return &sinks.BatchError{Errs: errs}
}

// safeLetters compares what a letter holds while it is written.
type safeLetters struct {
	mu    sync.Mutex
	wrong []string
	got   []string
}

func (l *safeLetters) Write(_ context.Context, letters []Letter) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, letter := range letters {
		text, err := json.Marshal(letter)
		if err != nil || !strings.Contains(string(letter.Record.Body), `"id":"`+letter.Record.ID+`"`) {
			l.wrong = append(l.wrong, string(text))
		}
		l.got = append(l.got, letter.Record.ID)
	}
	return len(letters), nil
}

// Under failures, retries, dead letters, isolated objects and small batches nothing is lost, reordered or mixed up, and nothing sleeps
// on what is ready.
func TestRecycledBatches(t *testing.T) {
	for _, onePerKey := range []bool{false, true} {
		t.Run(fmt.Sprint("one per key ", onePerKey), func(t *testing.T) {
			sink, dead := &checking{}, &safeLetters{}
			p := start(t, sink, dead, func(o *Options) {
				o.Limits = sinks.Limits{MaxRecords: 20, MaxBytes: 6 << 10, Linger: 2 * time.Millisecond, Concurrency: 4, Timeout: time.Second, OnePerKey: onePerKey}
			})
			const objects, versions = 30, 60
			var sources sync.WaitGroup
			for w := range 3 {
				sources.Go(func() {
					for v := range versions {
						for n := w; n < objects; n += 3 {
							if err := p.Delta(t.Context(), sized(t, fmt.Sprint("o", n), v+1, rand.N(900))); err != nil {
								t.Error(err)
							}
						}
						if v%7 == 0 {
							time.Sleep(time.Duration(rand.N(4000)) * time.Microsecond)
						}
					}
				})
			}
			sources.Wait()
			drain(t, p)
			sink.mu.Lock()
			defer sink.mu.Unlock()
			dead.mu.Lock()
			defer dead.mu.Unlock()
			if len(sink.wrong)+len(dead.wrong) > 0 {
				t.Errorf("mixed up: %v %v", sink.wrong, dead.wrong)
			}
			checkOrder(t, sink.got)
			all := map[string]bool{}
			for _, id := range append(append([]string{}, sink.got...), dead.got...) {
				all[id] = true
			}
			if len(all) != objects*versions {
				t.Errorf("got %d, want %d", len(all), objects*versions)
			}
		})
	}
}

// Reading a snapshot ends with its context, wherever it waits.
func TestPaceEnds(t *testing.T) {
	sink := &script{}
	release := make(chan struct{})
	sink.answer = func(int, []sinks.Record) error { <-release; return nil }
	p, stop := launch(sink, &letters{}, func(o *Options) { o.MaxBytes = 64 << 10 })
	defer stop()
	defer close(release)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun := time.Now()
	for n := 0; ; n++ {
		d := sized(t, fmt.Sprint("o", n), 1, 1<<10)
		d.Type, d.Snapshot = delta.Added, true
		if err := p.Delta(ctx, d); err != nil {
			break
		}
		if n > 1000 {
			t.Fatal("it is not bounded")
		}
	}
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// While a batch that takes no more lingers, the dispatcher does not encode what waits over and over.
func TestNothingFitsDoesNotSpin(t *testing.T) {
	sink := &script{}
	p := start(t, sink, &letters{}, func(o *Options) {
		o.MaxBytes = 64 << 20
		o.Limits.MaxRecords, o.Limits.MaxBytes, o.Limits.Linger, o.Limits.Concurrency = 500, 100<<10, 500*time.Millisecond, 1
	})
	for n := range 24 {
		mustTake(t, p, sized(t, fmt.Sprint("large-", n), 1, 60<<10))
	}
	before, begun := cpu(t), time.Now()
	eventually(t, "three are sent", func() bool { time.Sleep(5 * time.Millisecond); return len(sink.storedIDs()) >= 3 })
	used, took := cpu(t)-before, time.Since(begun)
	t.Logf("%v of CPU in %v", used, took)
	if used > 600*time.Millisecond { // of one and a half seconds
		t.Errorf("three batches of one record took %v, and %v of CPU", took.Round(time.Millisecond), used.Round(time.Millisecond))
	}
}

func cpu(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// The memory of a batch of the Kafka sink's default size is used again.
func TestArenaOfAFullBatchIsKept(t *testing.T) {
	kept, dropped := 0, 0
	for size := 300; size < 20_000; size += 557 {
		e := shape.NewEncoder(shape.Options{Name: "test", Cluster: "c", Format: shape.FormatCloudEvents})
		var arena []byte
		for n := 0; ; n++ {
			record, grown, _ := e.Encode(arena, &delta.Entry{Delta: sized(t, fmt.Sprint("o", n), 1, size)})
			if len(grown) > 1000<<10 {
				break
			}
			_, arena = record, grown
		}
		if cap(arena) > maxArena {
			dropped++
		} else {
			kept++
		}
	}
	if dropped > 0 {
		t.Errorf("of batches of 1000 KiB, by the size of their objects, the memory of %d is kept, of %d dropped", kept, dropped)
	}
}

// An object that does not fit beside others gets its turn, however many of those there are.
func TestLargeObjectGetsItsTurn(t *testing.T) {
	sink := &script{}
	sink.set(func(int, []sinks.Record) error { time.Sleep(3 * time.Millisecond); return nil })
	p := start(t, sink, &letters{}, func(o *Options) {
		o.Limits.MaxRecords, o.Limits.MaxBytes, o.Limits.Concurrency, o.Limits.Linger = 100, 64<<10, 1, 0
		o.MaxBytes = 64 << 20
	})
	ctx, cancel := context.WithCancel(t.Context())
	var load sync.WaitGroup
	load.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			_ = p.Delta(ctx, change(t, fmt.Sprint("s", n), 1))
			time.Sleep(300 * time.Microsecond)
		}
	})
	defer load.Wait()
	defer cancel()
	eventually(t, "the load runs", func() bool { return len(sink.storedIDs()) > 50 })
	mustTake(t, p, sized(t, "large", 1, 63<<10))
	id := sized(t, "large", 1, 1).ID("c")
	begun := time.Now()
	for !slices.Contains(sink.storedIDs(), id) {
		if time.Since(begun) > 5*time.Second {
			t.Fatalf("it waited %v, while %d others went", time.Since(begun), len(sink.storedIDs()))
		}
		time.Sleep(time.Millisecond)
	}
	t.Logf("waited %v", time.Since(begun))
}
