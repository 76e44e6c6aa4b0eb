package app

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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

// The state file testdata/state-served.db.gz was written by commit 624abff, which recorded per watch, not per object, which
// pipelines had their snapshot. It has four objects at position 14: both (u11), mine (u12) and last (u14) in the namespace
// ns, and none (u13) in the namespace other. Pipeline p takes all of them and retains the previous version, q takes those of
// ns. The snapshot of the pipeline late was interrupted by kill -9: its log holds both and last.
func TestStateOfAnOlderVersion(t *testing.T) {
	t.Run("history since the position", func(t *testing.T) {
		server, dir := olderServer(t), olderState(t)
		got := runOlder(t, server, dir, func() {
			server.Write("both", false)       // 15
			server.Write("other/none", false) // 16
			server.Write("last", true)        // 17
		}, "u14/17/DELETED")
		for name, want := range map[string][]string{
			"p":    {"u11/15/MODIFIED", "u13/16/MODIFIED", "u14/17/DELETED"},
			"q":    {"u11/15/MODIFIED", "u14/17/DELETED"},
			"late": {"u11/11/ADDED+s", "u11/15/MODIFIED", "u12/12/ADDED+s", "u13/13/ADDED+s", "u13/16/MODIFIED", "u14/14/ADDED+s", "u14/17/DELETED"},
		} {
			if !slices.Equal(got[name], want) {
				t.Errorf("%s got %v, want %v", name, got[name], want)
			}
		}
	})
	t.Run("history refused", func(t *testing.T) {
		server, dir := olderServer(t), olderState(t)
		server.Write("both", true)       // 15
		server.Write("other/none", true) // 16
		server.Write("last", false)      // 17
		server.Compact()                 // 18
		got := runOlder(t, server, dir, func() { server.Write("last", true) }, "u14/19/DELETED")
		for name, want := range map[string][]string{
			"p": {"gap 14-18", "u11/11/DELETED+i", "u13/13/DELETED+i", "u14/17/MODIFIED+i", "u14/19/DELETED"},
			"q": {"gap 14-18", "u11/11/DELETED+i", "u14/17/MODIFIED+i", "u14/19/DELETED"},
			// late may have u13: the killed run sent a part of its snapshot.
			"late": {"gap 14-18", "u11/11/ADDED+s", "u11/11/DELETED+i", "u12/12/ADDED+s", "u13/13/DELETED+i", "u14/14/ADDED+s", "u14/17/ADDED+s", "u14/17/MODIFIED+i", "u14/19/DELETED"},
		} {
			if !slices.Equal(got[name], want) {
				t.Errorf("%s got %v, want %v", name, got[name], want)
			}
		}
	})
}

// TestOlderDigests: what commit 624abff retained of objects in redacted form has other digests. It is dropped, so that no
// value that stayed is sent as a changed one.
func TestOlderDigests(t *testing.T) {
	for policy, compared := range map[string]bool{`"kept":"unredacted"`: true, `"kept":"redacted"  `: false} {
		server, dir := olderServer(t), olderState(t)
		file := filepath.Join(dir, "kubeferry.db")
		content, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, bytes.ReplaceAll(content, []byte(`"kept":"unredacted"`), []byte(policy)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		var redactor *shape.Redactor
		if !compared {
			redactor = shape.NewRedactor([]byte("key"), "c")
		}
		server.Write("both", false) // 15
		server.CompactStates()      // or the previous versions would be read once more
		delivered := deliverOlder(t, server, dir, redactor, func() {}, "u11/15/MODIFIED")
		for _, a := range delivered["p"] {
			if a.kind == "MODIFIED" && a.compared != compared {
				t.Errorf("%s: %s is compared with the previous version: %v, want %v", policy, a, a.compared, compared)
			}
		}
	}
}

func olderServer(t *testing.T) *sourcetest.Server {
	server := sourcetest.New(t)
	for _, name := range []string{"both", "mine", "other/none", "last"} {
		server.Write(name, false) // 11 to 14
	}
	return server
}

func olderState(t *testing.T) string {
	dir := t.TempDir()
	packed, err := os.Open("testdata/state-served.db.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = packed.Close() }()
	unpacked, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(unpacked)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kubeferry.db"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// runOlder runs the pipelines on a state, calls change, and waits until each pipeline has delivered the record last. It
// returns what each of them delivered, sorted, each record once.
func runOlder(t *testing.T, server *sourcetest.Server, dir string, change func(), last string) map[string][]string {
	t.Helper()
	delivered := map[string][]string{}
	for name, arrivals := range deliverOlder(t, server, dir, nil, change, last) {
		for _, a := range arrivals {
			text := a.String()
			if a.kind == "GAP" {
				text = fmt.Sprintf("gap %d-%d", a.gap.from, a.gap.to)
			}
			delivered[name] = append(delivered[name], text)
		}
		delivered[name] = slices.Compact(slices.Sorted(slices.Values(delivered[name])))
	}
	return delivered
}

// deliverOlder is runOlder with what arrived, and a redactor for the pipeline p.
func deliverOlder(t *testing.T, server *sourcetest.Server, dir string, redactor *shape.Redactor, change func(), last string) map[string][]arrival {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	client, err := source.NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: dir}, client, nil, func(err error) { t.Errorf("the run failed: %v", err) }, logger)
	if err != nil {
		t.Fatal(err)
	}
	metrics := pipeline.NewMetrics(prometheus.NewRegistry())
	scripts := map[string]*script{}
	var pipelines []*pipeline.Pipeline
	for _, name := range []string{"p", "q", "late"} {
		scripts[name] = newScript(1)
		options := pipeline.Options{
			Options:  shape.Options{Name: name, Cluster: "c", Format: shape.FormatCloudEventsBinary},
			MaxBytes: 1 << 20, DeadLetter: pipeline.LogOnly{},
			Retry: pipeline.Retry{Initial: time.Millisecond, Max: time.Millisecond},
			Sink:  scripts[name], SinkName: "script",
			Limits: sinks.Limits{MaxRecords: 10, MaxBytes: 1 << 20, Concurrency: 1, Timeout: time.Second},
		}
		switch name {
		case "p":
			options.Diff, options.Redactor = shape.DiffJSONPatch, redactor
		case "q":
			options.Filters = []shape.Filter{shape.NamespacesFilter(delta.Namespaces{Include: []string{"ns"}})}
		}
		if err := kept.setLog(&options, config.Backlog{}); err != nil {
			t.Fatal(err)
		}
		pipelines = append(pipelines, pipeline.New(options, metrics, logger))
	}
	handler := &fanOut{committer: kept.committer, pipelines: pipelines}
	options := source.Options{
		Name: "things", Resources: []schema.GroupVersionResource{sourcetest.Things}, Snapshot: delta.SnapshotInitial,
		Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 1 << 20, Factor: 1},
	}
	handler.setPipelines(&options)
	s := source.New(client, options, handler, source.NewMetrics(prometheus.NewRegistry()), logger)
	if err := kept.restore([]*source.Source{s}); err != nil {
		t.Fatal(err)
	}
	if position := s.Status()[0].Position; position != "14" {
		t.Errorf("restored the position %q", position)
	}
	if err := kept.begin([]*source.Source{s}, pipelines); err != nil {
		t.Fatal(err)
	}
	running, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer func() {
		stop()
		all.Wait()
		kept.close()
	}()
	for _, p := range pipelines {
		all.Go(func() { p.Run(running) })
	}
	all.Go(func() { s.Run(running) })
	pending := func() bool {
		return slices.ContainsFunc(s.Snapshots("late", ""), func(s source.SnapshotStatus) bool { return !s.Done })
	}
	for deadline := time.Now().Add(10 * time.Second); s.Status()[0].State != source.StateWatching || pending(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%+v", s.Status())
		}
	}
	change()
	delivered := map[string][]arrival{}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		missing := ""
		for name, sink := range scripts {
			delivered[name] = sink.all()
			if !slices.ContainsFunc(delivered[name], func(a arrival) bool { return a.String() == last }) {
				missing = fmt.Sprintf("%s got %v", name, delivered[name])
			}
		}
		if missing == "" {
			return delivered
		}
		if time.Now().After(deadline) {
			t.Fatal(missing)
		}
	}
}
