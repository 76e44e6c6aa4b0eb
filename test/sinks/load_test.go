package sinks_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// load delivers perKey records of each of the keys as a pipeline would: workers side by side that share no key,
// batches within the limits, and what was not acknowledged again from its key's first failure on.
type load struct {
	workers, keysEach, perKey int

	mu        sync.Mutex // guards what follows
	calls     int
	errors    int
	acked     int
	downtime  time.Duration // the longest time between two acknowledgements
	lastAck   time.Time
	lastError error
}

func (l *load) total() int { return l.workers * l.keysEach * l.perKey }

func key(worker, k int) string { return fmt.Sprintf("object-%d-%d", worker, k) }

// run returns once all is acknowledged. At progress records it calls half, once.
func (l *load) run(ctx context.Context, t *testing.T, sink sinks.Sink, limits sinks.Limits, progress int, half func()) {
	t.Helper()
	l.lastAck = time.Now()
	var wg, disturbance sync.WaitGroup
	var once sync.Once
	for worker := range l.workers {
		wg.Go(func() {
			next := make([]int, l.keysEach) // how many of each key are acknowledged
			for {
				batch, keys := l.batch(worker, next, limits)
				if len(batch) == 0 {
					return
				}
				err := sink.Deliver(ctx, batch)
				acked := 0
				failed := map[int]bool{}
				for i, err := range sinks.PerRecord(err, len(batch)) {
					switch {
					case err != nil:
						failed[keys[i]] = true
					case failed[keys[i]]:
						t.Errorf("%s acknowledged after an earlier record of its key failed", batch[i].ID)
					default:
						next[keys[i]]++
						acked++
					}
				}
				if now := l.note(acked, err); now >= progress && half != nil {
					once.Do(func() { disturbance.Go(half) })
				}
				if err != nil {
					select {
					case <-time.After(50 * time.Millisecond): // the pipeline's backoff
					case <-ctx.Done():
						t.Errorf("worker %d: %v, last error: %v", worker, ctx.Err(), err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	disturbance.Wait()
}

// batch returns the next records of a worker's keys.
func (l *load) batch(worker int, next []int, limits sinks.Limits) (batch []sinks.Record, keys []int) {
	perKey := 3
	if limits.OnePerKey {
		perKey = 1
	}
	for n := range perKey {
		for k := range l.keysEach {
			if i := next[k] + n; i < l.perKey && len(batch) < limits.MaxRecords {
				batch = append(batch, sinktest.NewRecord(key(worker, k), i+1))
				keys = append(keys, k)
			}
		}
	}
	return batch, keys
}

func (l *load) note(acked int, err error) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if err != nil {
		l.errors++
		l.lastError = err
	}
	if acked > 0 {
		now := time.Now()
		l.downtime = max(l.downtime, now.Sub(l.lastAck))
		l.lastAck = now
	}
	l.acked += acked
	return l.acked
}

// arrival is one stored record: its key and its id.
type arrival struct{ key, id string }

// check fails unless everything arrived, and each key's records in order of their first arrival. It returns how many
// arrived more than once.
func (l *load) check(t *testing.T, got []arrival) (doubles int) {
	t.Helper()
	seen := map[string]bool{}
	next := map[string]int{}
	for _, a := range got {
		if seen[a.id] {
			doubles++
			continue
		}
		seen[a.id] = true
		next[a.key]++
		if want := sinktest.NewRecord(a.key, next[a.key]).ID; a.id != want {
			t.Errorf("key %s: got %s as first arrival %d, want %s", a.key, a.id, next[a.key], want)
		}
	}
	if len(seen) != l.total() {
		t.Errorf("got %d different records, want %d", len(seen), l.total())
	}
	t.Logf("%d records, %d calls, %d of them with errors, %d doubles, longest pause %v; last error: %v",
		l.total(), l.calls, l.errors, doubles, l.downtime.Round(time.Millisecond), first(l.lastError))
	return doubles
}

// first returns the first record's error of a batch.
func first(err error) error {
	var batch *sinks.BatchError
	if errors.As(err, &batch) {
		for _, err := range batch.Errs {
			if err != nil {
				return err
			}
		}
	}
	return err
}
