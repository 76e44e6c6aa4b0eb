package source

import (
	"encoding/json"
	"log/slog"
	"reflect"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// Whatever is kept of a watch, a source begins with it or refuses it; and what it began with is what it keeps.
func FuzzMeta(f *testing.F) {
	client, err := NewClient(&rest.Config{Host: "http://127.0.0.1:1"}, false)
	if err != nil {
		f.Fatal(err)
	}
	begin := func() *Source {
		options := Options{Name: "test", Resources: []schema.GroupVersionResource{sourcetest.Things}, Pipelines: []string{"p", "q"}}
		return New(client, options, &life{}, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	}
	f.Add([]byte(`{"source":"test","resource":"v1/things","position":"9","seen":12,"pipelines":["q","p"]}`), uint64(1))
	f.Add([]byte(`{"position":"x","gap":"refused","doubt":{"p":""},"namespaces":{"include":["a*"]},"retainPolicy":"redacted"}`), uint64(3))
	f.Add([]byte(`[]`), uint64(0))
	f.Add([]byte(`{"begun":true,"pipelines":["p","p","",null]}`), ^uint64(0))
	f.Fuzz(func(t *testing.T, text []byte, filtered uint64) {
		s, m := begin(), newMemory()
		id := s.WatchIDs()[0]
		m.meta[id] = text
		m.known[id] = map[string]delta.Known{"/a": {Name: "a", Version: delta.NewVersion("u", "1"), Filtered: filtered, Had: filtered >> 16, Due: filtered >> 32, Retained: true, Previous: []byte("x")}}
		if _, err := Restore(m, s); err != nil {
			return
		}
		m.commit(s.Capture())
		s.Committed()
		var kept, again Meta
		if err := json.Unmarshal(m.meta[id], &kept); err != nil {
			t.Fatal(err)
		}
		s = begin()
		if _, err := Restore(m, s); err != nil {
			t.Fatalf("what it kept it does not take: %v", err)
		}
		m.commit(s.Capture())
		err := json.Unmarshal(m.meta[id], &again)
		kept.Snapshots, again.Snapshots = nil, nil // one that begins once more waits for what the last run left
		if err != nil || !reflect.DeepEqual(kept, again) {
			t.Errorf("got %+v, then %+v, %v", kept, again, err)
		}
	})
}
