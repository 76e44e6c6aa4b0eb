package pipeline

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// ahead is a pipeline that does not run: its memory is taken, and a log is beyond its cursor.
type ahead struct {
	*Pipeline
	t    *testing.T
	book *logbook
}

func newAhead(t *testing.T) *ahead {
	t.Helper()
	p, stop := launch(&script{}, &letters{}, nil)
	stop()
	a := &ahead{p, t, newLogbook()}
	p.options.Log, p.budget.memory = a.book, p.options.MaxBytes
	p.log.cursor, p.log.written = 1, 1
	p.backlog.suspects["suspect"] = 1
	return a
}

// write adds an entry to the log, of so many bytes.
func (a *ahead) write(e delta.Entry, bytes int64) {
	e.Seq = a.log.written
	a.book.entries[e.Seq], a.book.order, a.book.bytes[e.Seq] = e, append(a.book.order, e.Seq), bytes
	a.log.written++
	a.log.behind++
}

func (a *ahead) writeChange(namespace, name string, bytes int64) {
	a.t.Helper()
	a.write(delta.Entry{Delta: changeIn(a.t, namespace, name, int(a.log.written))}, bytes)
}

// writeInMemory writes a change of an object of which another one is in memory.
func (a *ahead) writeInMemory(namespace, name string) {
	a.t.Helper()
	a.writeChange(namespace, name, 100)
	ref := delta.Ref{Resource: pods, Namespace: namespace, Name: name}
	a.backlog.objects[ref] = &objectQueue{ref: ref}
}

// look returns the number of the candidate; 0 for none.
func (a *ahead) look() uint64 {
	a.t.Helper()
	if err := a.lookAhead(a.t.Context()); err != nil {
		a.t.Fatal(err)
	}
	if a.log.candidate == nil {
		return 0
	}
	return a.log.candidate.seq
}

// send begins a call with the candidate.
func (a *ahead) send() *batch {
	b := newBatch()
	a.fillAhead(b)
	return b
}

var refusedOnce = &outcome{results: []result{failed}}

// A record from beyond the cursor that fails has a backoff as any other; with one call at a time, no other of its namespace is under way
// meanwhile.
func TestCandidateHasABackoff(t *testing.T) {
	a := newAhead(t)
	now := time.Now()
	a.now = func() time.Time { return now }
	a.options.Retry = Retry{Initial: time.Second, Max: 4 * time.Second}
	a.writeChange("other", "refused", 100)
	a.writeChange("other", "next", 100)
	for _, wait := range []time.Duration{1, 2, 4, 4} {
		wait *= time.Second
		first := a.look()
		if first == 0 {
			t.Fatal("no candidate")
		}
		b := a.send()
		if got := a.look(); got != 0 {
			t.Errorf("%d is sent beside another of its namespace", got)
		}
		a.settleAhead(b, refusedOnce)
		second := a.look()
		if second == 0 || second == first {
			t.Errorf("got %d behind %d", second, first)
		}
		a.settleAhead(a.send(), refusedOnce)
		now = now.Add(wait - time.Millisecond)
		if got := a.look(); got != 0 {
			t.Fatalf("%d is sent before its backoff of %v", got, wait)
		}
		now = now.Add(searchPause)
	}
	a.look()
	a.settleAhead(a.send(), &outcome{results: []result{delivered}, errs: []*sinks.Error{nil}})
	if len(a.log.failedAhead) != 1 || a.log.aheadCalls.Total != 0 {
		t.Errorf("got %v and %v", a.log.failedAhead, a.log.aheadCalls)
	}
}

// A probe from beyond the cursor has no backoff, since the breaker has one. The reader looks again once a backoff is over.
func TestCandidateIsAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the time for its backoff does not pass before it is waited for
		a := newAhead(t)
		a.options.Retry = Retry{Initial: 10 * time.Millisecond, Max: time.Second}
		a.writeChange("other", "refused", 100)
		a.breaker.tripped, a.breaker.interval = true, time.Second
		for _, tripped := range []bool{true, false} {
			a.look()
			b := a.send()
			b.probe, a.breaker.tripped = tripped, tripped
			a.settle(b, a.decide(b, []*sinks.Error{{Reason: sinks.ReasonOther, Err: errDown}}, false, false))
			if got := len(a.log.failedAhead); tripped != (got == 0) {
				t.Errorf("a probe %t: %d have a backoff", tripped, got)
			}
		}
		for len(a.log.wake) > 0 {
			<-a.log.wake
		}
		select {
		case <-a.log.wake:
		case <-time.After(10 * time.Second):
			t.Error("nothing wakes the reader")
		}
	})
}

// The only change that may be sent among thousands is found wherever it is.
func TestOneAmongManySuspects(t *testing.T) {
	for _, tripped := range []bool{false, true} {
		for _, at := range []int{0, maxFirsts, 2*maxFirsts - 1} {
			t.Run(fmt.Sprint(tripped, " ", at), func(t *testing.T) {
				a := newAhead(t)
				a.breaker.tripped = tripped
				for n := range 2 * maxFirsts {
					namespace := "suspect"
					if n == at {
						namespace = "good"
					}
					a.writeChange(namespace, fmt.Sprint("o-", n), 100)
				}
				for n := 0; a.look() != uint64(at)+1; n++ {
					if n == 50 || !tripped {
						t.Fatalf("got %v", a.log.candidate)
					}
					a.log.candidate = nil
				}
			})
		}
	}
}

// A notice that is settled has what is behind it in the log found, and loses no candidate meanwhile; one that is not in the log
// changes nothing.
func TestScanBehindSettledNotices(t *testing.T) {
	a := newAhead(t)
	a.write(delta.Entry{Gap: &delta.Gap{Watch: "w", Resource: pods}}, 100)
	for n := range 40 {
		a.writeChange("suspect", fmt.Sprint("o-", n), readChunk/10) // four chunks
	}
	a.writeChange("behind", "o", 100)
	for seq, e := range a.book.entries {
		if e.Delta != nil && e.Delta.Ref().Namespace == "suspect" {
			e.Delta.Watch = "another"
			a.book.entries[seq] = e
		}
	}
	a.writeChange("good", "o", 100)
	e := a.book.entries[43]
	e.Delta.Watch = "third"
	if got := a.look(); got != 1 && got != 43 {
		t.Fatalf("got %d", got)
	}
	whole := a.scan.begun
	a.log.candidate = nil
	a.log.noticeSettled(&item{gap: &delta.Gap{}, watch: "third"})
	if got := a.look(); got == 0 || a.nextScan.end != 0 || a.scan.begun != whole {
		t.Errorf("the scan is repeated for a notice that it did not find; got %d", got)
	}
	a.log.candidate, a.log.taken[1] = nil, true
	a.log.noticeSettled(&item{gap: &delta.Gap{}, watch: "w"})
	found := map[uint64]bool{}
	for n := 0; n < 100 && !found[42]; n++ {
		got := a.look()
		if got == 0 {
			t.Fatalf("look %d: no candidate", n)
		}
		found[got] = true
		a.log.candidate = nil
	}
	if !found[42] {
		t.Errorf("what was behind the notice is not found: %v", found)
	}
}

// A scan that is repeated ends, however fast the log grows.
func TestRepeatedScanEnds(t *testing.T) {
	a := newAhead(t)
	for n := range 100 {
		a.writeChange("good", fmt.Sprint("o-", n), readChunk/10)
	}
	a.look()
	for n := range a.scan.seen { // it takes each for another
		a.scan.seen[n] = math.MaxUint64
	}
	begun := a.scan.begun
	a.scan.stale = true
	for n := range 100 {
		for m := range 20 {
			a.writeChange("good", fmt.Sprint("new-", n, "-", m), readChunk/10)
		}
		a.log.candidate = nil
		a.look()
		if a.scan.begun != begun {
			return
		}
	}
	t.Error("it does not end")
}

// duringRead is a log of which something happens while it is read the first time.
type duringRead struct {
	*logbook
	happens func()
}

func (b *duringRead) Read(from uint64, maxBytes int) ([]delta.Entry, error) {
	entries, err := b.logbook.Read(from, maxBytes)
	if b.happens != nil {
		b.happens()
		b.happens = nil
	}
	return entries, err
}

// What was left of the log is sent from beyond the cursor while it is read, and new changes come into memory and behind the cursor: what
// the reader brings is older than both.
func TestLogEndsDuringARead(t *testing.T) {
	a := newAhead(t)
	a.writeChange("one", "first", 100)
	a.writeChange("other", "last", 100)
	a.log.next = a.log.written
	sent := &outcome{results: []result{delivered}, errs: []*sinks.Error{nil}}
	calls := map[uint64]*batch{}
	for range 2 {
		calls[a.look()] = a.send()
	}
	a.settleAhead(calls[1], sent)
	a.budget.memory, a.options.Spill, a.options.MaxDiskBytes = 0, true, 1<<20
	behind, err := a.Reserve(t.Context(), change(t, "behind", 12), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.options.Log = &duringRead{a.book, func() {
		a.settleAhead(calls[2], sent)
		mustTake(t, a.Pipeline, change(t, "in-memory", 11))
		a.Take(behind)
		a.budget.memory = a.options.MaxBytes
		cancel()
	}}
	a.readBack(ctx)
	if want := behind.item.seq; a.log.cursor != want || a.log.behind != 1 {
		t.Errorf("%d are behind the cursor %d, want one behind %d", a.log.behind, a.log.cursor, want)
	}
}

// A mark that is refused beyond the cursor goes to the dead letter once something else got through meanwhile: what is behind it in its
// watch is sent.
func TestMarkIsRefusedBeyondTheCursor(t *testing.T) {
	a := newAhead(t)
	letters := &letters{}
	now := time.Now()
	a.now, a.options.DeadLetter = func() time.Time { return now }, letters
	a.write(delta.Entry{Mark: markOf(delta.Started)}, 100)
	a.writeChange("shop", "behind", 100)
	for n, want := range []result{failed, failed, dead} {
		if got := a.look(); got != 1 {
			t.Fatalf("attempt %d: got %d", n, got)
		}
		b := a.send()
		if n == 0 { // while it was under way
			a.counts.successes++
		}
		v := a.decide(b, []*sinks.Error{{Reason: sinks.ReasonNotFound, Err: errDown}}, false, false)
		if v.results[0] != want {
			t.Errorf("attempt %d: got %v, want %v", n, v.results[0], want)
		}
		a.writeDeadLetters(t.Context(), b, v)
		a.settle(b, v)
		a.breaker.tripped = false
		if n == 1 {
			a.counts.successes++
		}
		now = now.Add(time.Minute)
	}
	if got := letters.ids(); len(got) != 1 {
		t.Errorf("the dead letters are %q", got)
	}
	for n := 0; a.look() != 2; n++ {
		if n == 100 {
			t.Fatal("what is behind it is not found")
		}
		a.log.candidate = nil
	}
}

// While nothing in memory may be sent, as behind a gap that waits for its next attempt, what is in the log is.
func TestCandidateBehindAGapThatFails(t *testing.T) {
	a := newAhead(t)
	a.backlog.suspects = map[string]int{}
	a.writeChange("good", "o", 100)
	if got := a.look(); got != 0 {
		t.Errorf("got %d though nothing fails", got)
	}
	a.backlog.failing[&objectQueue{}] = struct{}{}
	if got := a.look(); got != 1 {
		t.Errorf("got %d", got)
	}
}

// The search goes on by itself until it has seen the whole log, also where it has found nothing that may be sent.
func TestScanGoesOnWithoutACandidate(t *testing.T) {
	a := newAhead(t)
	for n := range 40 {
		a.writeChange("suspect", fmt.Sprint("bad-", n), readChunk)
	}
	a.writeChange("good", "g", 100)
	for range 40 {
		for len(a.log.wake) > 0 {
			<-a.log.wake
		}
		if a.look() != 0 {
			return
		}
		if len(a.log.wake) == 0 {
			t.Fatal("the rest of the log is not read until something else wakes the reader")
		}
	}
	t.Error("no candidate")
}

// If many candidates cannot be sent, others are chosen a second later, also if nothing else happens.
func TestCandidateBehindManyThatCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAhead(t)
		a.writeChange("good", "g", 100)
		for n := range 3 * maxDraws {
			a.writeInMemory("good", fmt.Sprint("in-memory-", n))
		}
		for tries := 1; a.look() == 0; tries++ {
			if tries == 5 {
				t.Fatal("no candidate")
			}
			<-a.log.wake
		}
	})
}

// If none of many candidates can be sent, the reader looks for one about once a second, however often it is woken.
func TestNoCandidateAmongMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAhead(t)
		a.breaker.fail(a.now(), 0, false)
		for n := range 10 * maxDraws {
			a.writeInMemory("suspect", fmt.Sprint("in-memory-", n))
		}
		a.writeInMemory("good", "in-memory")
		for range 10 {
			a.look()
		}
		looks, begun := 0, time.Now()
		for time.Since(begun) < time.Minute {
			<-a.log.wake
			looks++
			if a.look() != 0 {
				t.Fatal("a candidate")
			}
		}
		if looks < 30 || looks > 70 {
			t.Errorf("%d searches in a minute", looks)
		}
	})
}

// Within a delay that the sink requested for the records of one tenant, a candidate of another namespace has a probe too, also if something
// of it comes only later.
func TestCandidateWithinARequestedDelay(t *testing.T) {
	a := newAhead(t)
	now := a.now()
	a.breaker.fail(now, 10*time.Minute, false)
	a.breaker.early = 0
	now = now.Add(2 * time.Second)
	if b, wait := a.pickProbe(now); b != nil || wait <= 0 || wait > 2*time.Second {
		t.Fatalf("got %+v, wait %v", b, wait)
	}
	a.writeChange("good", "g", 100)
	if a.look() != 1 {
		t.Fatal("no candidate")
	}
	b, _ := a.pickProbe(now.Add(2 * time.Second))
	if b == nil || !b.ahead || b.items[0].namespace() != "good" {
		t.Fatalf("got %+v", b)
	}
	a.writeChange("good", "h", 100)
	if a.look() != 2 {
		t.Fatal("no candidate")
	}
	if b, _ := a.pickProbe(now.Add(4 * time.Second)); b != nil || a.log.candidate != nil {
		t.Errorf("another probe of it: %+v, or the candidate is still %+v", b, a.log.candidate)
	}
	until := a.breaker.until
	if a.breaker.fail(now.Add(4*time.Second), time.Hour, true); !a.breaker.until.Equal(until) {
		t.Error("others wait for longer")
	}
	a.write(delta.Entry{Gap: &delta.Gap{Watch: "w2", Resource: pods, From: "1", To: "5", Observed: now}}, 100)
	a.writeChange("another", "g", 100)
	for n := range 100 { // a few among those that may not be sent
		a.writeChange("good", fmt.Sprint("more-", n), 100)
	}
	a.now = func() time.Time { return now.Add(5 * time.Second) }
	for range 100 {
		a.look()
		if i := a.log.candidate; i != nil && i.namespace() == "another" {
			return
		}
		a.log.candidate = nil
	}
	t.Error("no candidate of a namespace without a probe")
}

// The next entry of the log needs less memory than one behind the cursor did that was sent meanwhile.
func TestSizeOfWhatWasSentFromTheLog(t *testing.T) {
	p, stop := launch(&script{}, &letters{}, nil)
	stop()
	p.options.Log = newLogbook()
	entries := []delta.Entry{
		{Seq: 11, Delta: largeChange(t, "large", 1, int(p.options.MaxBytes)*3/4)}, // 10 was sent, and is not in the log any more
		{Seq: 12, Delta: change(t, "small", 2)},
	}
	p.log.cursor, p.log.behind, p.log.written, p.log.next, p.log.taken = 10, 2, 13, 13, map[uint64]bool{}
	p.budget.memory = p.options.MaxBytes * 7 / 16
	p.counts.Waiting = 2
	p.admit(entries)
	if p.readable() {
		t.Error("what does not fit would be read over and over")
	}
	p.settleAhead(&batch{objects: []*objectQueue{{}}, items: []*item{p.logged(entries[0])}}, &outcome{results: []result{delivered}, errs: make([]*sinks.Error, 1)})
	if !p.readable() {
		t.Errorf("the log is not read on: cursor %d, size %d", p.log.cursor, p.log.nextSize)
	}
}
