package sinks_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// benchmark delivers full batches of 2 KB records of different objects, as many side by side as the sink allows.
func benchmark(b *testing.B, sink sinks.Sink, config sinks.Config) {
	limits := config.Limits()
	batches := make([][]sinks.Record, limits.Concurrency)
	for worker := range batches {
		for n := range limits.MaxRecords {
			r := sinktest.NewRecord(fmt.Sprintf("object-%d-%d", worker, n), 1)
			r.Body = []byte(`{"text":"` + strings.Repeat(fmt.Sprintf("%08x", n), 255) + `"}`)
			batches[worker] = append(batches[worker], r)
		}
	}
	records := 0
	var mu sync.Mutex
	b.ResetTimer()
	var wg sync.WaitGroup
	for worker, batch := range batches {
		wg.Go(func() {
			for round := worker; round < b.N; round += len(batches) {
				for i := range batch { // a new id, or JetStream would drop them as duplicates
					batch[i].DedupID = fmt.Sprintf("bench/%d/%d/%d", b.N, round, i)
				}
				if err := sink.Deliver(context.Background(), batch); err != nil {
					b.Errorf("deliver: %v", firstError(err))
					return
				}
				mu.Lock()
				records += len(batch)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(records)/b.Elapsed().Seconds(), "records/s")
}
