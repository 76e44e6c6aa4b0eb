package app

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// oldVersions counts the records of MODIFIED by what they hold of the previous version.
type oldVersions struct {
	mu                     sync.Mutex
	added, patched, unsure int
}

func (o *oldVersions) Deliver(_ context.Context, batch []sinks.Record) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, r := range batch {
		switch {
		case r.Fields.Type == string(delta.Added):
			o.added++
		case bytes.Contains(r.Body, []byte(`,"oldObjectKnown":false`)):
			o.unsure++
		case bytes.Contains(r.Body, []byte(`"path":"/metadata/resourceVersion"}]`)):
			o.patched++
		}
	}
	return nil
}

func (o *oldVersions) Close(context.Context) error { return nil }

// retentionRun is a source with one pipeline that sends JSON Patches.
type retentionRun struct {
	t        *testing.T
	sink     oldVersions
	pipeline *pipeline.Pipeline
	stop     func()
}

func runRetaining(t *testing.T, server *sourcetest.Server, dir string, maxBytes int64, filters ...shape.Filter) *retentionRun {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	client, err := source.NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: dir}, client, nil, logger)
	if err != nil {
		t.Fatal(err)
	}
	run := &retentionRun{t: t}
	options := pipeline.Options{
		Options: shape.Options{
			Name: "p", Cluster: "c", Format: shape.FormatJSON,
			Filters: filters, Diff: shape.DiffJSONPatch,
		},
		MaxBytes: 4 << 20, DeadLetter: pipeline.NoLetters{}, Sink: &run.sink, SinkName: "out",
		Retry:  pipeline.Retry{Initial: time.Millisecond, Max: time.Millisecond},
		Limits: sinks.Limits{MaxRecords: 10, MaxBytes: 1 << 20, Concurrency: 1, Timeout: time.Second},
	}
	if err := kept.setLog(&options, config.Backlog{}); err != nil {
		t.Fatal(err)
	}
	p := pipeline.New(options, pipeline.NewMetrics(prometheus.NewRegistry()), logger)
	run.pipeline = p
	handler := &fanOut{committer: kept.committer, pipelines: []*pipeline.Pipeline{p}}
	from := source.Options{
		Name: "things", Resources: []schema.GroupVersionResource{sourcetest.Things}, Snapshot: delta.SnapshotInitial,
		Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 1 << 20, Factor: 1}, Previous: source.NewPreviousVersions(maxBytes),
	}
	handler.setPipelines(&from)
	s := source.New(client, from, handler, source.NewMetrics(prometheus.NewRegistry()), logger)
	if err := kept.restore([]*source.Source{s}); err != nil {
		t.Fatal(err)
	}
	if err := kept.begin([]*source.Source{s}, []*pipeline.Pipeline{p}); err != nil {
		t.Fatal(err)
	}
	running, cancel := context.WithCancel(context.Background())
	var watching, delivering sync.WaitGroup
	delivering.Go(func() { p.Run(running) })
	watching.Go(func() { s.Run(running) })
	run.stop = sync.OnceFunc(func() {
		cancel()
		watching.Wait()
		delivering.Wait()
		if err := kept.finish(); err != nil {
			t.Error(err)
		}
		kept.close()
	})
	t.Cleanup(run.stop)
	return run
}

// await waits for so many records, and returns how many of them have a patch, and how many no previous version.
func (r *retentionRun) await(records int) (patched, unsure int) {
	r.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(time.Millisecond) {
		r.sink.mu.Lock()
		added, patched, unsure := r.sink.added, r.sink.patched, r.sink.unsure
		r.sink.mu.Unlock()
		if added+patched+unsure == records {
			return patched, unsure
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("got %d records ADDED, %d with a patch, and %d without the previous version; want %d", added, patched, unsure, records)
		}
	}
}

// expect waits for records of which so many have a patch.
func (r *retentionRun) expect(records, patches int) {
	r.t.Helper()
	if patched, unsure := r.await(records); patched != patches {
		r.t.Errorf("%d records have a patch, and %d no previous version; want %d and 0", patched, unsure, patches)
	}
}

// live waits until no more bytes live than a bound: what is on its way goes.
func (r *retentionRun) live(most uint64) {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if m.HeapAlloc <= most {
			return
		}
		if time.Now().After(deadline) {
			r.t.Errorf("%d MiB live, want at most %d", m.HeapAlloc>>20, most>>20)
			return
		}
	}
}

// largeObjects is a server with objects of half a megabyte that does not compress.
func largeObjects(t *testing.T, count int) (*sourcetest.Server, []string) {
	noise := make([]byte, 3<<17)
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise) // never fails
	text := base64.StdEncoding.EncodeToString(noise)
	server := sourcetest.New(t)
	server.Data = func(o sourcetest.Object) string {
		at := o.Created << 10 % len(text)
		return text[at:] + text[:at]
	}
	var names []string
	for n := range count {
		names = append(names, fmt.Sprintf("o%d", n))
		server.Write(names[n], false)
	}
	return server, names
}

// A tenant may make any number of large objects. What is retained of them for a difference stays within its bound, also at a
// restart, and every difference is known.
func TestVersionsBeforeAreBounded(t *testing.T) {
	const objects, bound, most = 20, 1 << 20, 10 << 20
	server, names := largeObjects(t, objects)
	dir := t.TempDir()
	r := runRetaining(t, server, dir, bound)
	r.expect(objects, 0)
	r.live(most)
	for _, name := range names {
		server.Write(name, false)
	}
	r.expect(2*objects, objects)
	r.live(most)
	r.stop()
	r = runRetaining(t, server, dir, bound)
	r.live(most)
	for _, name := range names {
		server.Write(name, false)
	}
	r.expect(objects, objects)
	r.live(most)
}

// Without a state directory, what does not fit is unknown, and the record says so.
func TestVersionsBeforeThatDoNotFit(t *testing.T) {
	const objects = 20
	server, names := largeObjects(t, objects)
	r := runRetaining(t, server, "", 5<<19)
	r.expect(objects, 0)
	r.live(12 << 20)
	for _, name := range names {
		server.Write(name, false)
	}
	patched, unsure := r.await(2 * objects)
	if unsure < objects/2 {
		t.Errorf("%d of %d previous versions were unknown", unsure, objects)
	}
	server.Write(names[objects-1], false) // what changed last is known
	if again, _ := r.await(2*objects + 1); again != patched+1 {
		t.Error("the previous version is unknown of the object that changed last")
	}
}

// nameFilter passes objects by their name.
type nameFilter string

func (f nameFilter) Pass(c *shape.Change) (bool, error) {
	return strings.HasPrefix(c.Identity().Name, string(f)), nil
}

func (nameFilter) OfObject() bool { return true }

// What the filters of all pipelines keep back takes no memory, though nothing bounds it.
func TestNothingIsRetainedOfFilteredObjects(t *testing.T) {
	server, names := largeObjects(t, 40)
	r := runRetaining(t, server, "", 1<<30, nameFilter("o39"))
	r.expect(1, 0)
	for deadline := time.Now().Add(30 * time.Second); r.pipeline.Stats().Filtered != 39; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got %+v", r.pipeline.Stats().Counts)
		}
	}
	r.live(12 << 20)
	server.Write(names[0], false)
	server.Write(names[39], false)
	r.expect(2, 1)
}
