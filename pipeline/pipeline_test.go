package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDeliversInOrder(t *testing.T) {
	sink := &script{}
	p := start(t, sink, &letters{}, nil)
	for version := 1; version <= 100; version++ {
		for object := range 20 {
			mustTake(t, p, change(t, fmt.Sprint("pod-", object), version))
		}
	}
	drain(t, p)
	ids := sink.storedIDs()
	if len(ids) != 2000 {
		t.Errorf("got %d records, want 2000", len(ids))
	}
	checkOrder(t, ids)
	if len(sink.overlaps) > 0 {
		t.Errorf("two calls held the same object: %v", sink.overlaps)
	}
	if s := p.Stats(); s.Delivered != 2000 || s.Received != 2000 {
		t.Errorf("got %+v", s)
	}
}

func TestOutageIsProbedAndSurvived(t *testing.T) {
	sink := &script{}
	var probes atomic.Int64
	down := func(_ int, batch []sinks.Record) error {
		if len(batch) == 1 {
			probes.Add(1)
		}
		return errDown
	}
	sink.set(down)
	p := start(t, sink, &letters{}, nil)
	for version := 1; version <= 5; version++ {
		for object := range 50 {
			mustTake(t, p, change(t, fmt.Sprint("pod-", object), version))
		}
	}
	eventually(t, "the sink counts as away, and is probed", func() bool { return !p.Stats().AwaySince.IsZero() && probes.Load() >= 3 })
	sink.set(nil)
	drain(t, p)
	if s := p.Stats(); !s.AwaySince.IsZero() || s.Delivered != 250 {
		t.Errorf("got %+v", s)
	}
	checkOrder(t, sink.storedIDs())
}

// A batch that failed goes out again as it was, so that a receiver may recognize it by its digest.
func TestFailedBatchIsRetriedAsItWas(t *testing.T) {
	sink := &script{}
	var mu sync.Mutex
	var first, again []string
	sink.set(func(_ int, batch []sinks.Record) error {
		mu.Lock()
		defer mu.Unlock()
		var ids []string
		for _, record := range batch {
			ids = append(ids, record.ID)
		}
		switch {
		case first == nil && len(batch) > 1:
			first = ids
			return errDown
		case first != nil && len(batch) > 1 && slices.Contains(ids, first[0]):
			again = ids
		}
		return nil
	})
	p := start(t, sink, &letters{}, func(o *Options) { o.Limits.Linger = 50 * time.Millisecond })
	for object := range 10 {
		mustTake(t, p, change(t, fmt.Sprint("pod-", object), 1))
	}
	drain(t, p)
	if !slices.Equal(first, again) {
		t.Errorf("sent %v, then %v", first, again)
	}
}

// One record that the receiver answers with 500 for ever, alone or in a batch, holds up no other object.
func TestPoisonedRecordStopsOnlyItsObject(t *testing.T) {
	for _, concurrency := range []int{1, 4} {
		t.Run(fmt.Sprint("concurrency ", concurrency), func(t *testing.T) {
			sink := &script{}
			sink.set(func(_ int, batch []sinks.Record) error {
				for _, record := range batch {
					if record.Fields.Name == "poison" {
						return errDown
					}
				}
				return nil
			})
			p := start(t, sink, &letters{}, func(o *Options) { o.Limits.Concurrency = concurrency })
			const others = 500
			mustTake(t, p, change(t, "poison", 1))
			for n := range others {
				mustTake(t, p, change(t, fmt.Sprint("pod-", n%40), n+1))
			}
			mustTake(t, p, change(t, "poison", 2))
			eventually(t, "all others are delivered", func() bool { return p.Stats().Delivered == others })
			eventually(t, "the sink is available", func() bool { return p.Stats().AwaySince.IsZero() })
			sink.set(nil)
			drain(t, p)
			checkOrder(t, sink.storedIDs())
		})
	}
}

func TestPermanentGoesToDeadLetter(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		failed := false
		for n, record := range batch {
			if record.Fields.Name == "large" {
				errs[n], failed = sinks.Permanent(sinks.ReasonTooLarge, errors.New("413")), true
			}
		}
		if failed {
			return &sinks.BatchError{Errs: errs}
		}
		return nil
	})
	dead := &letters{}
	p := start(t, sink, dead, nil)
	for n := range 30 {
		mustTake(t, p, change(t, fmt.Sprint("pod-", n), 1))
	}
	mustTake(t, p, change(t, "large", 1))
	drain(t, p)
	if ids := dead.ids(); len(ids) != 1 || !strings.Contains(ids[0], "uid-large") {
		t.Errorf("got dead letters %v", ids)
	}
	if s := p.Stats(); s.Delivered != 30 || s.Dead["too_large"] != 1 {
		t.Errorf("got %+v", s)
	}
}

// A receiver that refuses everything for good is misconfigured: it counts as away, and what is held comes through
// once it is mended.
func TestRunOfPermanents(t *testing.T) {
	sink := &script{}
	refuse := func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n := range errs {
			errs[n] = sinks.Permanent(sinks.ReasonRejected, errors.New("400"))
		}
		return &sinks.BatchError{Errs: errs}
	}
	sink.set(refuse)
	dead := &letters{}
	p := start(t, sink, dead, nil)
	for n := range 100 {
		mustTake(t, p, change(t, fmt.Sprint("pod-", n), 1))
	}
	eventually(t, "the sink counts as away", func() bool { return !p.Stats().AwaySince.IsZero() })
	sink.set(nil)
	drain(t, p)
	if n := len(dead.ids()); n > 10 {
		t.Errorf("%d records became dead letters, want at most %d", n, 10)
	}
}

func TestDeadLetterThatCannotBeWrittenIsNotSettled(t *testing.T) {
	sink := &script{}
	sink.set(func(int, []sinks.Record) error { return sinks.Permanent(sinks.ReasonRejected, errors.New("400")) })
	dead := &letters{fail: errors.New("disk full")}
	p := start(t, sink, dead, nil)
	mustTake(t, p, change(t, "a", 1))
	eventually(t, "the letter was tried again", func() bool {
		dead.mu.Lock()
		defer dead.mu.Unlock()
		return dead.tries >= 3
	})
	sink.mu.Lock()
	if sink.calls != 1 {
		t.Errorf("the sink got %d calls for a record that it refused for good", sink.calls)
	}
	sink.mu.Unlock()
	if s := p.Stats(); s.Waiting != 1 {
		t.Errorf("got %+v, want one waiting", s)
	}
	dead.mu.Lock()
	dead.fail = nil
	dead.mu.Unlock()
	drain(t, p)
	if len(dead.ids()) != 1 {
		t.Errorf("got dead letters %v", dead.ids())
	}
}

func TestAttempts(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		for _, record := range batch {
			if record.Fields.Name == "a" {
				return errDown
			}
		}
		return nil
	})
	dead := &letters{}
	p := start(t, sink, dead, func(o *Options) { o.Retry.Attempts = 3 })
	mustTake(t, p, change(t, "a", 1))
	mustTake(t, p, change(t, "a", 2))
	for n := 0; p.Stats().Dead[reasonAttempts] < 2; n++ { // an attempt counts only if something was delivered since the last one
		if n == 2000 {
			t.Fatalf("%+v", p.Stats())
		}
		mustTake(t, p, change(t, "other", n+1))
		time.Sleep(5 * time.Millisecond)
	}
	drain(t, p)
	if s := p.Stats(); s.Dead[reasonAttempts] != 2 {
		t.Errorf("got %+v", s)
	}
	checkOrder(t, dead.ids())
}

// The bound holds: a full backlog blocks, gives way when something is delivered, and a blocked call ends with ctx.
func TestBoundBlocks(t *testing.T) {
	sink := &script{}
	sink.set(func(int, []sinks.Record) error { return errDown })
	p := start(t, sink, &letters{}, func(o *Options) { o.MaxBytes = 10 << 10 })
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	taken := 0
	for {
		err := p.Delta(ctx, change(t, fmt.Sprint("pod-", taken), 1))
		if err != nil {
			break
		}
		taken++
	}
	if s := p.Stats(); s.Bytes > 10<<10 || s.Waiting != uint64(taken) || !s.Balanced() {
		t.Errorf("took %d, got %+v", taken, s)
	}
	sink.set(nil)
	mustTake(t, p, change(t, "late", 1))
	drain(t, p)
}

func TestObjectLargerThanTheBound(t *testing.T) {
	sink := &script{}
	p := start(t, sink, &letters{}, func(o *Options) { o.MaxBytes = 100 })
	mustTake(t, p, change(t, "a", 1))
	mustTake(t, p, change(t, "b", 1))
	drain(t, p)
}

// A gap that is not taken holds nothing back.
func TestGapHoldsNothingBack(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n, record := range batch {
			if record.Fields.Type == "GAP" {
				errs[n] = errDown
			}
		}
		return &sinks.BatchError{Errs: errs}
	})
	p := start(t, sink, &letters{}, nil)
	mustTake(t, p, change(t, "before", 1))
	if err := p.Gap(t.Context(), &delta.Gap{Watch: "w", Resource: pods, From: "1", To: "5", Observed: time.Now()}); err != nil {
		t.Fatal(err)
	}
	mustTake(t, p, change(t, "after", 6))
	eventually(t, "what follows", func() bool { return p.Stats().Delivered == 2 })
	sink.set(nil)
	drain(t, p)
	if s := p.Stats(); s.GapsSettled != 1 || s.Delivered != 2 {
		t.Errorf("got %+v", s)
	}
}

// A gap that waits behind a refused one of another watch was not tried, and is no dead letter: no call has both, so that the sink has nothing to
// hold back.
func TestGapBehindARefusedOneOfItsResource(t *testing.T) {
	sink, dead := &script{}, &letters{}
	both := false
	sink.set(func(_ int, batch []sinks.Record) error {
		errs, keys := make([]error, len(batch)), map[string]bool{}
		for n, r := range batch {
			both = both || keys[r.Key]
			keys[r.Key] = true
			if strings.Contains(r.ID, "w1") {
				errs[n] = sinks.Permanent(sinks.ReasonRejected, errDown)
			}
		}
		return sinks.Result(errs)
	})
	p := start(t, sink, dead, func(o *Options) { o.Retry.Attempts, o.Limits.MaxRecords, o.Limits.Linger = 1, 3, time.Second })
	for _, watch := range []string{"w1", "w2"} {
		if watch == "w2" {
			mustTake(t, p, changeIn(t, "", "between", 1))
		}
		if err := p.Gap(t.Context(), &delta.Gap{Watch: watch, Resource: pods, From: "1", To: "5", Observed: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	drain(t, p)
	if ids := dead.ids(); both || len(ids) != 1 || !strings.Contains(ids[0], "w1") {
		t.Errorf("together: %t, dead letters: %v", both, ids)
	}
}

func TestFilters(t *testing.T) {
	sink := &script{}
	p := start(t, sink, &letters{}, func(o *Options) {
		o.Filters = []shape.Filter{shape.TypesFilter{delta.Modified}, shape.NamespacesFilter{Include: []string{"sh*"}}}
	})
	mustTake(t, p, change(t, "a", 1))
	added := change(t, "b", 1)
	added.Type = delta.Added
	mustTake(t, p, added)
	drain(t, p)
	if s := p.Stats(); s.Delivered != 1 || s.Filtered != 1 || s.Received != 2 {
		t.Errorf("got %+v", s)
	}
}

func TestOnePerKey(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		keys := map[string]bool{}
		for _, record := range batch {
			if keys[record.Key] {
				t.Errorf("two records of %s in one call", record.Key)
			}
			keys[record.Key] = true
		}
		return nil
	})
	p := start(t, sink, &letters{}, func(o *Options) { o.Limits.OnePerKey = true })
	for version := 1; version <= 50; version++ {
		mustTake(t, p, change(t, "a", version))
		mustTake(t, p, change(t, "b", version))
	}
	drain(t, p)
	checkOrder(t, sink.storedIDs())
}

// A sink that requests a delay gets no call until it is over.
func TestRetryAfter(t *testing.T) {
	sink := &script{}
	var asked time.Time
	sink.set(func(call int, _ []sinks.Record) error {
		if call == 1 {
			asked = time.Now()
			return &sinks.Error{Err: errors.New("429"), Reason: sinks.ReasonThrottled, RetryAfter: 300 * time.Millisecond}
		}
		if since := time.Since(asked); since < 290*time.Millisecond {
			t.Errorf("called again after %v", since)
		}
		return nil
	})
	p := start(t, sink, &letters{}, func(o *Options) { o.Limits.Concurrency = 1 })
	mustTake(t, p, change(t, "a", 1))
	mustTake(t, p, change(t, "b", 1))
	drain(t, p)
}

// Permanent refusals of one object prove nothing about the sink, however many they are.
func TestRunOfPermanentsOnOneObject(t *testing.T) {
	sink := &script{}
	sink.set(func(int, []sinks.Record) error { return sinks.Permanent(sinks.ReasonTooLarge, errors.New("413")) })
	dead := &letters{}
	p := start(t, sink, dead, nil)
	for version := range 3 * 10 {
		mustTake(t, p, change(t, "large", version+1))
	}
	drain(t, p)
	if n := len(dead.ids()); n != 3*10 {
		t.Errorf("%d dead letters, want %d", n, 3*10)
	}
	checkOrder(t, dead.ids())
}

// With nothing else to do but a good record now and then, the sink counts as away a few times at most for a poisoned one: then it
// stays in its own backoff.
func TestPoisonedRecordAtLowTraffic(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		for _, record := range batch {
			if record.Fields.Name == "poison" {
				return errDown
			}
		}
		return nil
	})
	p := start(t, sink, &letters{}, nil)
	mustTake(t, p, change(t, "poison", 1))
	for n := range 5 {
		mustTake(t, p, change(t, "good", n+1))
		eventually(t, fmt.Sprintf("good record %d is delivered", n+1), func() bool { return p.Stats().Delivered == uint64(n+1) })
	}
	for n := 5; n < 25; n++ {
		if !p.Stats().AwaySince.IsZero() {
			t.Fatalf("the sink counts as away before good record %d", n+1)
		}
		mustTake(t, p, change(t, "good", n+1))
		eventually(t, fmt.Sprintf("good record %d is delivered", n+1), func() bool { return p.Stats().Delivered == uint64(n+1) })
	}
	sink.set(nil)
	drain(t, p)
}

// A record that a sink held back behind another of its object has had no attempt of its own.
func TestHeldBackIsNoAttempt(t *testing.T) {
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n, record := range batch {
			switch {
			case strings.Contains(record.ID, "/1/"):
				errs[n] = sinks.Permanent(sinks.ReasonTooLarge, errors.New("413"))
			case n > 0 && errs[n-1] != nil:
				errs[n] = sinks.Transient(sinks.ReasonOther, errors.New("held back"))
			}
		}
		return &sinks.BatchError{Errs: errs}
	})
	dead := &letters{}
	p := start(t, sink, dead, func(o *Options) { o.Retry.Attempts, o.Limits.Linger = 1, 50*time.Millisecond })
	mustTake(t, p, change(t, "a", 1))
	mustTake(t, p, change(t, "a", 2))
	drain(t, p)
	if s := p.Stats(); s.Delivered != 1 || len(dead.ids()) != 1 {
		t.Errorf("got %+v, dead letters %v", s, dead.ids())
	}
}

// A letter of a DELETED is no DELETED: behind one of those a sink may make a compacted topic forget the key.
func TestLetterIsNoDeletion(t *testing.T) {
	var got sinks.Record
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		got = batch[0]
		return nil
	})
	letters := SinkLetters{Sink: sink, Timeout: time.Second}
	letter := Letter{Pipeline: "p", Record: sinks.Record{ID: "c/u/7/DELETED", Fields: sinks.Fields{Name: "a", Type: "DELETED"}}}
	if n, err := letters.Write(t.Context(), []Letter{letter}); n != 1 || err != nil {
		t.Fatal(err)
	}
	if got.Fields.Type == "DELETED" || got.Fields.Name != "a" {
		t.Errorf("the letter's fields are %+v", got.Fields)
	}
	read, err := DecodeLetter(got.Body)
	if err != nil || read.Record.Fields.Type != "DELETED" {
		t.Errorf("the record in it has %+v, %v", read.Record.Fields, err)
	}
}
