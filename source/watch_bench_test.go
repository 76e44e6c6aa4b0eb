//go:build unix

package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// BenchmarkWatch measures the CPU time of a change from the server's socket to the handler, the server's part included: as
// fast as it goes, and live, where each change wakes the goroutines anew.
func BenchmarkWatch(b *testing.B) {
	text, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		b.Fatal(err)
	}
	var pod bytes.Buffer
	if err := json.Compact(&pod, text); err != nil {
		b.Fatal(err)
	}
	event := fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"1","managedFields":[{"a":%q}]},"message":%q}`,
		strings.Repeat("x", 300), strings.Repeat("y", 500))
	b.Run("events", func(b *testing.B) { benchmarkWatch(b, event, 0) })
	b.Run("pods", func(b *testing.B) { benchmarkWatch(b, pod.String(), 0) })
	b.Run("live", func(b *testing.B) { benchmarkWatch(b, event, 500*time.Microsecond) })
}

func benchmarkWatch(b *testing.B, object string, pause time.Duration) {
	var parsed struct {
		Metadata struct{ ResourceVersion string }
	}
	if err := json.Unmarshal([]byte(object), &parsed); err != nil {
		b.Fatal(err)
	}
	old := fmt.Sprintf(`"resourceVersion":%q`, parsed.Metadata.ResourceVersion)
	before, behind, _ := strings.Cut(`{"type":"MODIFIED","object":`+object+"}\n", old)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Query().Get("watch") == "" {
			fmt.Fprint(w, `{"kind":"APIResourceList","metadata":{"resourceVersion":"1"},"resources":[{"name":"things","namespaced":true,"kind":"Thing","verbs":["list","watch"]}]}`)
			return
		}
		for n := range b.N {
			fmt.Fprintf(w, `%s"resourceVersion":"%d"%s`, before, n+1, behind)
			if pause > 0 {
				w.(http.Flusher).Flush()
				time.Sleep(pause)
			}
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		b.Fatal(err)
	}
	handler := &counter{done: make(chan struct{})}
	handler.left.Store(int64(b.N))
	options := Options{Name: "test", Resources: []schema.GroupVersionResource{sourcetest.Things}, Pipelines: []string{"p"}}
	s := New(client, options, handler, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	begun := cpuTime()
	go func() {
		defer close(ended)
		s.Run(ctx)
	}()
	<-handler.done
	b.ReportMetric(float64((cpuTime()-begun).Nanoseconds())/1e3/float64(b.N), "cpu-µs/op")
	cancel()
	<-ended
}

// counter is a handler that closes done behind the last delta.
type counter struct {
	recorder
	left atomic.Int64
	done chan struct{}
}

func (c *counter) Delta(_ context.Context, _ *delta.Delta, to Recipients, record func(PipelineSet)) error {
	record(to.Pipelines)
	if c.left.Add(-1) == 0 {
		close(c.done)
	}
	return nil
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
