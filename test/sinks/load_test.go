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
	marked    bool
	since     map[string]int // by key: the first record that was sent after the mark

	reasons map[sinks.Reason]int // of the errors, by record
}

func (l *load) total() int { return l.workers * l.keysEach * l.perKey }

func key(worker, k int) string { return fmt.Sprintf("object-%d-%d", worker, k) }

// run returns once all is acknowledged. At progress records it calls half, once.
func (l *load) run(ctx context.Context, t *testing.T, sink sinks.Sink, limits sinks.Limits, progress int, half func()) {
	t.Helper()
	l.lastAck, l.reasons = time.Now(), map[sinks.Reason]int{}
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
				l.sending(worker, next)
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
				if now := l.note(len(batch), acked, err); now >= progress && half != nil {
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

func (l *load) note(records, acked int, err error) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.calls++
	if err != nil {
		l.errors++
		l.lastError = err
		for _, err := range sinks.PerRecord(err, records) {
			if class := sinks.Classify(err); class != nil {
				l.reasons[class.Reason]++
			}
		}
	}
	if acked > 0 {
		now := time.Now()
		l.downtime = max(l.downtime, now.Sub(l.lastAck))
		l.lastAck = now
	}
	l.acked += acked
	return l.acked
}

// sending notes what a worker sends first after the mark.
func (l *load) sending(worker int, next []int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range next {
		if _, known := l.since[key(worker, k)]; l.marked && !known {
			l.since[key(worker, k)] = next[k] + 1
		}
	}
}

// mark is the moment that [load.checkSince] goes by.
func (l *load) mark() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.marked, l.since = true, map[string]int{}
}

// await waits until so many records, or all, are acknowledged.
func (l *load) await(t *testing.T, acked int) {
	t.Helper()
	l.poll(t, func() bool { return l.acked >= min(acked, l.total()) })
}

// awaitErrors waits until so many more calls have failed.
func (l *load) awaitErrors(t *testing.T, calls int) {
	t.Helper()
	l.mu.Lock()
	want := l.errors + calls
	l.mu.Unlock()
	l.poll(t, func() bool { return l.errors >= want })
}

func (l *load) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

func (l *load) poll(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		met := condition()
		l.mu.Unlock()
		switch {
		case met:
			return
		case time.Now().After(deadline):
			t.Error("the load does not get on")
			return
		}
	}
}

// arrival is one stored record: its key and its id.
type arrival struct{ key, id string }

// check fails unless everything arrived, and each key's records in order of their first arrival. It returns how many
// arrived more than once.
func (l *load) check(t *testing.T, got []arrival) (doubles int) {
	t.Helper()
	keys := map[string]struct{}{}
	for _, a := range got {
		keys[a.key] = struct{}{}
	}
	if want := l.workers * l.keysEach; len(keys) != want {
		t.Errorf("got records of %d keys, want %d", len(keys), want)
	}
	return l.checkFrom(t, got, func(string) int { return 1 })
}

// checkSince is check for what was sent after the mark. What was sent before may be there too, without a hole.
func (l *load) checkSince(t *testing.T, got []arrival) (doubles int) {
	t.Helper()
	first := map[string]int{}
	for _, a := range got {
		if first[a.key] == 0 {
			for n := range l.perKey {
				if sinktest.NewRecord(a.key, n+1).ID == a.id {
					first[a.key] = n + 1
				}
			}
		}
	}
	sent := 0
	for key, n := range l.since {
		if n > l.perKey {
			continue
		}
		sent++
		if first[key] == 0 || first[key] > n {
			t.Errorf("key %s: got %d as the first arrival, want no later one than %d", key, first[key], n)
		}
	}
	if sent == 0 {
		t.Error("the load was over before the mark: nothing is shown")
	}
	return l.checkFrom(t, got, func(key string) int { return first[key] })
}

// checkFrom is check where the records of a key begin with the one that from returns.
func (l *load) checkFrom(t *testing.T, got []arrival, from func(key string) int) (doubles int) {
	t.Helper()
	seen := map[string]bool{}
	next := map[string]int{}
	total := 0
	for _, a := range got {
		if seen[a.id] {
			doubles++
			continue
		}
		seen[a.id] = true
		if next[a.key] == 0 {
			next[a.key] = from(a.key)
			total += l.perKey - next[a.key] + 1
		}
		if want := sinktest.NewRecord(a.key, next[a.key]).ID; a.id != want {
			t.Errorf("key %s: got %s as first arrival, want %s", a.key, a.id, want)
		}
		next[a.key]++
	}
	if len(seen) != total {
		t.Errorf("got %d different records, want %d", len(seen), total)
	}
	t.Logf("%d records, %d calls, %d of them with errors, %d doubles, longest pause %v; last error: %v",
		total, l.calls, l.errors, doubles, l.downtime.Round(time.Millisecond), firstError(l.lastError))
	return doubles
}

// first returns the first record's error of a batch.
func firstError(err error) error {
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
