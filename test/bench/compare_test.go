// Package bench_test measures what a sink costs beside the client library that it uses: both deliver the same batches to
// the same server, in turn, in one run. As part of the tests it only shows that both arrive; with KUBEFERRY_BENCH=1 (`make
// bench-sinks`) it takes its time and fails below the share that docs/performance.md promises.
package bench_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

func TestMain(m *testing.M) {
	assets.Must(natstest.Prepare, kafkatest.Prepare)
	os.Exit(m.Run())
}

const (
	batchSize = 100
	bodySize  = 1 << 10
	workers   = 4 // what the sinks have for concurrency

	target = 0.85 // of the direct throughput
)

// size is how much is measured.
type size struct{ pairs, batches int } // batches of each worker

func sizeOf() size {
	if os.Getenv("KUBEFERRY_BENCH") != "" {
		return size{pairs: 31, batches: 40}
	}
	return size{pairs: 1, batches: 3}
}

// deliver is one way to get a batch acknowledged. It is called from several goroutines.
type deliver func(ctx context.Context, batch []sinks.Record) error

// result is one run.
type result struct {
	records int
	elapsed time.Duration
	mallocs uint64
	cpu     time.Duration // of this process: the servers are others
}

func (r result) rate() float64 { return float64(r.records) / r.elapsed.Seconds() }

// compare runs both ways in turn and returns how many records each has delivered, and the sink's share of the direct
// throughput.
func compare(t *testing.T, direct, sink deliver) (delivered int, share float64) {
	t.Helper()
	s := sizeOf()
	run := func(name string, pair int, way deliver) result {
		return measure(t, way, batchesOf(fmt.Sprintf("%s-%d", name, pair), s.batches))
	}
	run("warm-direct", 0, direct)
	run("warm-sink", 0, sink)
	var shares, directRates, sinkRates, directMallocs, sinkMallocs, directCPU, sinkCPU []float64
	for pair := range s.pairs {
		var d, k result
		if pair%2 == 0 { // whoever is second finds the server warmer, or busier
			d, k = run("direct", pair, direct), run("sink", pair, sink)
		} else {
			k, d = run("sink", pair, sink), run("direct", pair, direct)
		}
		shares = append(shares, k.rate()/d.rate())
		directRates, sinkRates = append(directRates, d.rate()), append(sinkRates, k.rate())
		directCPU = append(directCPU, float64(d.cpu.Nanoseconds())/float64(d.records)/1000)
		sinkCPU = append(sinkCPU, float64(k.cpu.Nanoseconds())/float64(k.records)/1000)
		directMallocs = append(directMallocs, float64(d.mallocs)/float64(d.records))
		sinkMallocs = append(sinkMallocs, float64(k.mallocs)/float64(k.records))
	}
	share = median(shares)
	t.Logf("%d pairs of %d records: direct %.0f/s, sink %.0f/s, share %.2f (%.2f to %.2f); per record %.1f and %.1f allocations, %.1f and %.1f µs CPU",
		s.pairs, workers*s.batches*batchSize, median(directRates), median(sinkRates), share, slices.Min(shares), slices.Max(shares),
		median(directMallocs), median(sinkMallocs), median(directCPU), median(sinkCPU))
	return (s.pairs + 1) * workers * s.batches * batchSize, share
}

// fast fails below the target, where it was measured for long enough.
func fast(t *testing.T, share float64) {
	t.Helper()
	if os.Getenv("KUBEFERRY_BENCH") != "" && share < target {
		t.Errorf("the sink has %.0f %% of the direct throughput, want %.0f %%", 100*share, 100*target)
	}
}

func measure(t *testing.T, way deliver, batches [][][]sinks.Record) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start, used := time.Now(), cpuTime()
	var wg sync.WaitGroup
	for _, own := range batches {
		wg.Go(func() {
			for _, batch := range own {
				if err := way(ctx, batch); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	r := result{records: len(batches) * len(batches[0]) * batchSize, elapsed: time.Since(start), cpu: cpuTime() - used}
	runtime.ReadMemStats(&after)
	r.mallocs = after.Mallocs - before.Mallocs
	return r
}

// batchesOf makes n batches for each worker. Each has one record of 100 objects; no two ids are the same.
func batchesOf(run string, n int) [][][]sinks.Record {
	all := make([][][]sinks.Record, workers)
	for worker := range all {
		for b := range n {
			batch := make([]sinks.Record, batchSize)
			for i := range batch {
				name := fmt.Sprintf("web-%d-%d", worker, i)
				id := fmt.Sprintf("bench/uid-%s/%s-%d/MODIFIED", name, run, b)
				batch[i] = sinks.Record{
					ID: id, DedupID: "bench/" + id, Key: "/apis/apps/v1/namespaces/shop/deployments/" + name,
					ContentType: "application/cloudevents+json", Body: body(i),
					Fields: sinks.Fields{
						Cluster: "bench", Group: "apps", Version: "v1", Resource: "deployments", Kind: "Deployment",
						Namespace: "shop", Name: name, UID: "uid-" + name, Type: "MODIFIED",
					},
				}
			}
			all[worker] = append(all[worker], batch)
		}
	}
	return all
}

var text = strings.Repeat(`{"name":"http","image":"registry.example.com/web:1.2.3","ready":true},`, 20)

func body(n int) []byte {
	head := fmt.Sprintf(`{"specversion":"1.0","n":%d,"data":{"containers":[`, n)
	tail := `]}}`
	return []byte(head + text[:bodySize-len(head)-len(tail)] + tail)
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// openSink opens a sink that is closed with the test.
func openSink(t *testing.T, config sinks.Config) sinks.Sink {
	t.Helper()
	sink, err := config.Open(t.Context(), sinks.Env{Name: "bench", UserAgent: "kubeferry/bench", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := sink.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return sink
}
