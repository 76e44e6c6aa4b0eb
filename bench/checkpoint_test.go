package bench

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/checkpoint"
	"github.com/kubeferry/kubeferry/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// BenchmarkCheckpoint is BenchmarkPipeline/cloudevents with and without a state directory: every delta is a new object
// of the known set, as in a first snapshot, which is the most that a commit can have to write.
func BenchmarkCheckpoint(b *testing.B) {
	frames := make([][]byte, 5000)
	for n := range frames {
		frames[n] = event(n)
	}
	b.Run("without", func(b *testing.B) {
		p, stop := running(pipeline.FormatCloudEvents)
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
		p, stop := runningWith(pipeline.FormatCloudEvents, func(o *pipeline.Options) {
			o.Log, o.Spill, o.MaxDiskBytes = benchLog{store, committer}, true, 1<<30
		})
		defer stop()
		watch := &watchState{}
		committer.Secure(watch, logState{p})
		ctx, cancel := context.WithCancel(context.Background())
		var running sync.WaitGroup
		running.Go(func() { committer.Run(ctx) })
		defer running.Wait()
		defer cancel()
		feed(b, p, frames, func(d *delta.Delta, take func()) {
			committer.Hand(func() {
				take()
				watch.put = append(watch.put, delta.Known{
					Namespace: d.Object.Namespace(), Name: d.Object.Name(), UID: d.Object.UID(), ResourceVersion: d.Object.ResourceVersion(),
				})
			})
		})
	})
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

// watchState stands for a watch: it is told of objects, and adds them to the next commit.
type watchState struct{ put []delta.Known }

func (w *watchState) Capture(c *checkpoint.Commit) {
	if len(w.put) > 0 {
		c.Watches = append(c.Watches, delta.WatchChange{Watch: "w", Put: w.put, Meta: []byte(`{"position":"1"}`)})
		w.put = nil
	}
}

func (*watchState) Committed(map[string]checkpoint.LogSize) {}

type logState struct{ *pipeline.Pipeline }

func (p logState) Capture(c *checkpoint.Commit) {
	if change := p.Pipeline.Capture(); len(change.Append)+len(change.Remove) > 0 {
		c.Logs = append(c.Logs, change)
	}
}

func (p logState) Committed(logs map[string]checkpoint.LogSize) {
	p.Pipeline.Committed(logs[p.Name()].Bytes)
}

type benchLog struct {
	store     *checkpoint.Store
	committer *checkpoint.Committer
}

func (l benchLog) Read(from uint64, maxBytes int) ([]delta.Entry, error) {
	return l.store.ReadLog("bench", from, maxBytes)
}

func (l benchLog) Commit() { l.committer.Soon() }
