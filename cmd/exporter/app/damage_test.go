package app

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// letters keeps dead letters.
type letters struct {
	mu  sync.Mutex
	all []pipeline.Letter
}

func (l *letters) Write(_ context.Context, letters []pipeline.Letter) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, letter := range letters {
		letter.Record.Body = bytes.Clone(letter.Record.Body)
		l.all = append(l.all, letter)
	}
	return len(letters), nil
}

// bodies keeps the ids of what it is sent.
type bodies struct {
	mu  sync.Mutex
	ids []string
}

func (b *bodies) Deliver(_ context.Context, batch []sinks.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range batch {
		b.ids = append(b.ids, r.ID)
	}
	return nil
}

func (b *bodies) Close(context.Context) error { return nil }

// An entry of the log that cannot be read becomes a dead letter, with as much of its identity as can be read. The others
// are delivered, and the snapshot that they are of does not count as complete.
func TestDamagedLogEntry(t *testing.T) {
	headLength := func(value []byte) int {
		length, n := binary.Uvarint(value)
		return n + int(length)
	}
	for name, test := range map[string]struct {
		damage func(value []byte) []byte
		id     string
	}{
		"in the object":            {func(v []byte) []byte { v[len(v)-9] ^= 1; return v }, "c/u2/2/ADDED"},
		"where the object begins":  {func(v []byte) []byte { copy(v[headLength(v):], "\xff\xff\xff"); return v }, "c/u2/2/ADDED"},
		"in the head":              {func(v []byte) []byte { v[5] = '{'; return v }, "c///MODIFIED"},
		"cut short":                {func(v []byte) []byte { return v[:headLength(v)+10] }, "c/u2/2/ADDED"},
		"cut short inside of head": {func(v []byte) []byte { return v[:20] }, "c///MODIFIED"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			logEntries(t, dir, 5)
			damageEntry(t, dir, 2, test.damage)
			delivered, written, stats := deliverLog(t, dir, 4, 1)
			want := []string{"c/u0/0/ADDED", "c/u1/1/ADDED", "c/u3/3/ADDED", "c/u4/4/ADDED"}
			if slices.Sort(delivered); !slices.Equal(delivered, want) {
				t.Errorf("delivered %v, want %v", delivered, want)
			}
			letter := written[0]
			if letter.Record.ID != test.id || letter.Reason != string(sinks.ReasonEncode) || !strings.Contains(letter.Error, "entry 2 of the log cannot be read") || letter.Record.Body != nil {
				t.Errorf("got the letter %+v, want one of %s", letter, test.id)
			}
			if stats.Restored != 5 || stats.Delivered != 4 || stats.Dead[string(sinks.ReasonEncode)] != 1 || stats.Waiting != 0 {
				t.Errorf("got %+v", stats.Counts)
			}
		})
	}
}

// What could not be read back is written as its identity, and becomes a dead letter.
func TestEntryLargerThanTheLogTakes(t *testing.T) {
	dir := t.TempDir()
	logEntries(t, dir, 2, bytes.Repeat([]byte("a"), 64<<20))
	_, written, _ := deliverLog(t, dir, 2, 1)
	if letter := written[0]; letter.Record.ID != "c/u2/2/ADDED" || letter.Record.Body != nil || !strings.Contains(letter.Error, "more than") {
		t.Errorf("got the letter %s: %s", letter.Record.ID, letter.Error)
	}
}

// logEntries writes a log of a snapshot, of count objects and one for each value of data.
func logEntries(t *testing.T, dir string, count int, data ...[]byte) {
	t.Helper()
	store, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	change := delta.LogChange{Pipeline: "p"}
	for n := range count + len(data) {
		value := []byte("value")
		if n >= count {
			value = data[n-count]
		}
		object, err := delta.NewObject(fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"o%d","namespace":"ns","uid":"u%d","resourceVersion":"%d"},"data":"%s"}`, n, n, n, value))
		if err != nil {
			t.Fatal(err)
		}
		change.Append = append(change.Append, delta.Entry{LogKey: delta.LogKey{Seq: uint64(n)}, Delta: &delta.Delta{
			Type: delta.Added, Resource: schema.GroupVersionResource{Version: "v1", Resource: "things"}, Watch: "w", Object: object, Observed: time.Unix(int64(n), 0),
			Snapshot: true, SnapshotSequence: 7,
		}})
	}
	if err := store.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
		t.Fatal(err)
	}
}

func damageEntry(t *testing.T, dir string, seq uint64, damage func([]byte) []byte) {
	t.Helper()
	db, err := bolt.Open(filepath.Join(dir, "kubeferry.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bolt.Tx) error {
		log := tx.Bucket([]byte("log/p"))
		var key []byte
		for cursor, at := log.Cursor(), []byte(nil); key == nil; {
			if at == nil {
				at, _ = cursor.First()
			} else {
				at, _ = cursor.Next()
			}
			if binary.BigEndian.Uint64(at[len(at)-8:]) == seq {
				key = bytes.Clone(at)
			}
		}
		return log.Put(key, damage(bytes.Clone(log.Get(key))))
	})
	if err != nil {
		t.Fatal(err)
	}
}

// deliverLog runs the pipeline p on the state in dir until so many records are delivered and dead letters written, and stops. Then a
// snapshot of them is not complete if there are dead letters.
func deliverLog(t *testing.T, dir string, deliveries, deadLetters int) ([]string, []pipeline.Letter, pipeline.Stats) {
	t.Helper()
	logger := slog.New(slog.DiscardHandler)
	client, err := source.NewClient(&rest.Config{Host: sourcetest.New(t).URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: dir}, client, nil, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	var sink bodies
	var dead letters
	options := pipeline.Options{
		Options:  shape.Options{Name: "p", Cluster: "c", Format: shape.FormatCloudEvents},
		MaxBytes: 1 << 20, DeadLetter: &dead, Sink: &sink, SinkName: "out",
		Retry:  pipeline.Retry{Initial: time.Millisecond, Max: time.Millisecond},
		Limits: sinks.Limits{MaxRecords: 10, MaxBytes: 1 << 20, Concurrency: 1, Timeout: time.Second},
	}
	if err := kept.setLog(&options, config.Backlog{Overflow: config.OverflowSpill, MaxDiskBytes: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	p := pipeline.New(options, pipeline.NewMetrics(prometheus.NewRegistry()), logger)
	if err := kept.begin(nil, []*pipeline.Pipeline{p}); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var delivering sync.WaitGroup
	delivering.Go(func() { p.Run(ctx) })
	if err := p.Settled(ctx, "w"); err != nil {
		t.Error(err)
	}
	if lacking := p.Lacking("w", 7); (len(lacking.Objects) > 0 || lacking.More || lacking.Unreadable) != (deadLetters > 0) {
		t.Errorf("the snapshot lacks %+v, with %d dead letters", lacking, deadLetters)
	}
	for deadline := time.Now().Add(30 * time.Second); p.Stats().Waiting > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("got %+v", p.Stats())
		}
	}
	stop()
	delivering.Wait()
	if err := kept.finish(); err != nil {
		t.Error(err)
	}
	if len(sink.ids) != deliveries || len(dead.all) != deadLetters {
		t.Fatalf("%d delivered and %d dead letters, want %d and %d", len(sink.ids), len(dead.all), deliveries, deadLetters)
	}
	if left := kept.store.Logs()["p"].Entries; left != 0 {
		t.Errorf("%d entries are left in the log", left)
	}
	return sink.ids, dead.all, p.Stats()
}
