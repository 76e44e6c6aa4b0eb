package bench_test

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
	kafkasink "github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// TestSoak delivers as fast as it can for ten minutes with KUBEFERRY_SOAK=1 (`make soak`), else for a moment: neither
// the heap nor the number of goroutines grows. The peers keep only what came last.
func TestSoak(t *testing.T) {
	t.Run("kafka", func(t *testing.T) {
		broker := kafkatest.StartWith(t, kafkatest.Options{Properties: map[string]string{
			"log.retention.bytes": strconv.Itoa(64 << 20), "log.segment.bytes": strconv.Itoa(16 << 20),
			"log.retention.check.interval.ms": "1000", "log.segment.delete.delay.ms": "0",
		}})
		broker.CreateTopic("soak", kafkaPartitions)
		config := kafkasink.NewConfig()
		config.Brokers, config.Topic = []string{broker.Addr()}, "soak"
		soak(t, openSink(t, config))
	})
	t.Run("jetstream", func(t *testing.T) {
		srv := natstest.StartCluster(t, 1)
		srv.CreateStreamWith(t.Context(), jetstream.StreamConfig{
			Name: "SOAK", Subjects: []string{"sink.>"}, MaxMsgs: 100_000, Duplicates: time.Second,
		})
		soak(t, openSink(t, natsConfig(srv)))
	})
	t.Run("core nats", func(t *testing.T) {
		config := natsConfig(natstest.StartCluster(t, 1))
		config.JetStream = false
		soak(t, openSink(t, config))
	})
	t.Run("webhook", func(t *testing.T) { soakWebhook(t, false) })
	t.Run("webhook over HTTP 2", func(t *testing.T) { soakWebhook(t, true) })
}

// soakWebhook delivers arrays to a receiver in this process, whose memory counts too.
func soakWebhook(t *testing.T, secure bool) {
	t.Helper()
	ca := sinktest.NewAuthority(t)
	server := httptest.NewUnstartedServer(&receiver{})
	config := webhook.NewConfig()
	config.Batch.MaxRecords, config.Concurrency = batchSize, workers
	if secure {
		caFile := filepath.Join(t.TempDir(), "ca.pem")
		if err := os.WriteFile(caFile, ca.PEM(), 0o600); err != nil {
			t.Fatal(err)
		}
		server.EnableHTTP2, server.TLS = true, ca.ServerConfig("127.0.0.1")
		server.StartTLS()
		config.TLS = &sinks.TLS{CAFile: caFile}
	} else {
		server.Start()
	}
	t.Cleanup(server.Close)
	config.URL = server.URL + "/sink"
	soak(t, openSink(t, config))
}

func soak(t *testing.T, sink sinks.Sink) {
	t.Helper()
	length, rounds := 2*time.Second, 10
	if os.Getenv("KUBEFERRY_SOAK") != "" {
		length, rounds = 10*time.Minute, 60
	}
	deliverFor(t, sink, "warm", length/time.Duration(rounds))
	before, goroutines := heap(), runtime.NumGoroutine()
	most, records := before, 0
	for round := range rounds {
		records += deliverFor(t, sink, strconv.Itoa(round), length/time.Duration(rounds))
		most = max(most, heap())
	}
	t.Logf("%d records in %v: heap %d KiB before, %d KiB at most, %d and %d goroutines",
		records, length, before>>10, most>>10, goroutines, runtime.NumGoroutine())
	const slack = 2 << 20 // maps and buffers that found their size late
	if most > before+slack {
		t.Errorf("the heap grew from %d to %d KiB", before>>10, most>>10)
	}
	if n := runtime.NumGoroutine(); n > goroutines+workers {
		t.Errorf("goroutines grew from %d to %d", goroutines, n)
	}
}

// deliverFor delivers batches for a while, and returns how many records.
func deliverFor(t *testing.T, sink sinks.Sink, run string, length time.Duration) (records int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length+time.Minute)
	defer cancel()
	end := time.Now().Add(length)
	var mu sync.Mutex // guards records
	var wg sync.WaitGroup
	for worker, batches := range batchesOf("soak", 1) {
		batch := batches[0]
		wg.Go(func() {
			for n := 0; time.Now().Before(end); n++ {
				for i := range batch {
					batch[i].BatchContentType = arrayType // for webhooks; the others do not look at it
					batch[i].DedupID = run + "/" + strconv.Itoa(worker) + "/" + strconv.Itoa(n) + "/" + strconv.Itoa(i)
				}
				if err := sink.Deliver(ctx, batch); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				records += len(batch)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return records
}

// heap is what is in use once all garbage is gone.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // what sync.Pool held
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
