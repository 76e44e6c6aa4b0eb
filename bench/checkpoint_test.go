package bench

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// BenchmarkCheckpoint is BenchmarkPipeline/cloudevents with and without a state directory: every delta is a new object
// of the known set, as in a first snapshot, which is the most that a commit can have to write.
func BenchmarkCheckpoint(b *testing.B) {
	frames := make([][]byte, 5000)
	for n := range frames {
		frames[n] = event(n)
	}
	b.Run("without", func(b *testing.B) {
		p, stop := running(shape.FormatCloudEvents)
		defer stop()
		feed(b, p, frames, func(_ *delta.Delta, take func()) { take() })
	})
	b.Run("with", func(b *testing.B) {
		store, err := checkpoint.Open(b.TempDir(), func(message string, err error) { b.Error(message, err) })
		if err != nil {
			b.Fatal(err)
		}
		defer store.Close()
		committer := checkpoint.NewCommitter(store, slog.New(slog.DiscardHandler))
		p, stop := runningWith(shape.FormatCloudEvents, func(o *pipeline.Options) {
			o.Log, o.Spill, o.MaxDiskBytes = benchLog{store, committer}, true, 1<<30
		})
		defer stop()
		watch := &watchState{}
		committer.Register(watch, logState{p})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { committer.Run(ctx) })
		defer running.Wait()
		defer cancel()
		feed(b, p, frames, func(d *delta.Delta, take func()) {
			committer.WithoutCapture(func() {
				take()
				watch.put = append(watch.put, delta.Known{
					Namespace: d.Object.Namespace(), Name: d.Object.Name(), Version: delta.NewVersion(d.Object.UID(), d.Object.ResourceVersion()),
				})
			})
		})
	})
}

// BenchmarkKnown is what the commits of a first snapshot write: 5,000 objects each, in the order of a Go map.
func BenchmarkKnown(b *testing.B) {
	commits := make([]*checkpoint.Commit, 12)
	for c := range commits {
		known := map[string]delta.Known{}
		for n := c * 5000; n < (c+1)*5000; n++ {
			name := fmt.Sprintf("web-6d4cf56db6-%05d.18a2b3c4d5e6f", n)
			known[name] = delta.Known{
				Namespace: "shop", Name: name,
				Version: delta.NewVersion(types.UID(fmt.Sprintf("4f0c1e10-1267-466d-aa8d-%012d", n)), fmt.Sprint(n)),
			}
		}
		put := slices.Collect(maps.Values(known))
		commits[c] = &checkpoint.Commit{Watches: []delta.WatchChange{{Watch: "w", Put: put, Meta: []byte(`{"position":"1"}`)}}}
	}
	for b.Loop() {
		store, err := checkpoint.Open(b.TempDir(), func(message string, err error) { b.Error(message, err) })
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range commits {
			again := *c
			again.Watches = slices.Clone(c.Watches)
			again.Watches[0].Put = slices.Clone(c.Watches[0].Put) // a commit may sort it
			if err := store.Commit(&again); err != nil {
				b.Fatal(err)
			}
		}
		if err := store.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*60_000), "ns/object")
}

func feed(b *testing.B, p *pipeline.Pipeline, frames [][]byte, hand func(d *delta.Delta, take func())) {
	b.Helper()
	gvr := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		object, err := delta.NewObject(frames[n%len(frames)])
		if err != nil {
			b.Fatal(err)
		}
		n++
		d := &delta.Delta{Type: delta.Added, Resource: gvr, Watch: "w", Object: object, Observed: time.Now()}
		ticket, err := p.Reserve(b.Context(), d, true)
		if err != nil {
			b.Fatal(err)
		}
		hand(d, func() { p.Take(ticket) })
	}
	p.Drain(b.Context())
}

// watchState stands for a watch: it adds the objects that it gets to the next commit.
type watchState struct{ put []delta.Known }

func (w *watchState) Capture(c *checkpoint.Commit) {
	if len(w.put) > 0 {
		c.Watches = append(c.Watches, delta.WatchChange{Watch: "w", Put: w.put, Meta: []byte(`{"position":"1"}`)})
		w.put = nil
	}
}

func (*watchState) Committed(map[string]delta.LogSize) {}

func (*watchState) Failed() { panic("the disk failed") }

type logState struct{ *pipeline.Pipeline }

func (p logState) Capture(c *checkpoint.Commit) {
	if change := p.Pipeline.Capture(); !change.Empty() {
		c.Logs = append(c.Logs, change)
	}
}

func (p logState) Committed(logs map[string]delta.LogSize) {
	p.Pipeline.Committed(logs[p.Name()].Bytes)
}

type benchLog struct {
	store     *checkpoint.Store
	committer *checkpoint.Committer
}

func (l benchLog) ReadFlow(flow string, from uint64, maxBytes int) ([]delta.Entry, bool, error) {
	return l.store.ReadFlow("bench", flow, from, maxBytes)
}

func (l benchLog) Commit() { l.committer.RequestCommit() }
