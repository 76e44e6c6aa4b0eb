package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// failingFirst refuses the second of the first letters.
type failingFirst struct {
	letters
	left int
}

func (l *failingFirst) Write(ctx context.Context, letters []Letter) (int, error) {
	if l.left > 0 {
		l.left--
		n, _ := l.letters.Write(ctx, letters[:1])
		return n, errDown
	}
	return l.letters.Write(ctx, letters)
}

// The letters of an object are written in its order: replay sends them in theirs.
func TestLettersKeepTheOrderOfTheirObject(t *testing.T) {
	dead := &failingFirst{left: 1}
	p := start(t, &script{}, dead, func(o *Options) {
		o.Filters = []shape.Filter{undecided{}}
		o.Limits.Concurrency, o.Limits.Linger = 1, 50*time.Millisecond // all of them in one batch
	})
	for version := 1; version <= 5; version++ {
		mustTake(t, p, change(t, "a", version))
	}
	drain(t, p)
	checkOrder(t, dead.ids())
	if n := len(dead.ids()); n != 5 {
		t.Errorf("got %d letters", n)
	}
}

// undecided is a filter that cannot decide: each change becomes a dead letter as it is.
type undecided struct{}

func (undecided) Pass(*shape.Change) (bool, error) { return false, errors.New("no such key") }
func (undecided) OfObject() bool                   { return false }

// A record that is nested as deeply as the API server allows leaves a letter that can be read among others.
func TestLetterOfADeepObject(t *testing.T) {
	for _, depth := range []int{9_990, 10_000, 10_003} {
		body := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		encoded, err := Letter{Pipeline: "p", Record: sinks.Record{ID: "c/u/1/ADDED", Body: []byte(body)}}.Encode()
		if err != nil {
			t.Fatalf("%d levels: %v", depth, err)
		}
		letter, err := DecodeLetter(encoded)
		kept := string(letter.Record.Body) == body
		if err != nil || letter.Record.ID != "c/u/1/ADDED" || kept != (depth < 10_000) || kept == strings.Contains(letter.Error, "too deeply") {
			t.Errorf("%d levels: kept %v, %q, %v", depth, kept, letter.Error, err)
		}
		var all []struct{ Letter json.RawMessage }
		if err := json.Unmarshal(fmt.Appendf(nil, `[{"letter":%s}]`, encoded), &all); err != nil {
			t.Errorf("%d levels: %v", depth, err)
		}
	}
}

// slowLetters take as long as a commit of the state file does, or as a sink that hangs.
type slowLetters struct {
	letters
	takes time.Duration
}

func (l *slowLetters) Write(ctx context.Context, letters []Letter) (int, error) {
	time.Sleep(l.takes)
	return l.letters.Write(ctx, letters)
}

// The letters of a batch are written at once.
func TestLettersAtOnce(t *testing.T) {
	for _, size := range []int{1, 300 << 10} {
		synctest.Test(t, func(t *testing.T) {
			dead := &letters{}
			p, stop := launch(&tenants{bad: rejected, perRecord: true}, dead, func(o *Options) {
				tenantLimits(100, 1)(o)
				o.Limits.MaxBytes = 16 << 20
			})
			defer stop()
			const refused = 9 // of ten the sink would be blamed
			for n := range refused {
				mustTake(t, p, largeChange(t, fmt.Sprint("bad-", n), n+1, size))
			}
			time.Sleep(time.Second)
			drain(t, p)
			if got := len(dead.ids()); got != refused || dead.tries != 1 {
				t.Errorf("%d letters of %d bytes in %d writes, want %d in one", got, size, dead.tries, refused)
			}
		})
	}
}

// Records of a tenant that are refused for good hold up no other namespace, however long a dead letter takes, and also if none can be
// written.
func TestLettersHoldUpOnlyTheirNamespace(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		takes       time.Duration
		fail        error
		perSecond   float64 // refused records
		concurrency int
	}{
		{takes: 20 * time.Millisecond, perSecond: 250, concurrency: 4},
		{takes: 100 * time.Millisecond, perSecond: 60, concurrency: 4},
		{takes: 10 * time.Second, fail: errDown, perSecond: 1, concurrency: 4},
		{takes: 10 * time.Second, fail: errDown, perSecond: 0.1, concurrency: 4},
	} {
		t.Run(fmt.Sprintf("%v, %v refused/s, %d calls at once", test.takes, test.perSecond, test.concurrency), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sink := &tenants{bad: rejected, perRecord: true, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
				dead := &slowLetters{takes: test.takes}
				dead.fail = test.fail
				p, stop := launch(sink, dead, tenantLimits(100, test.concurrency))
				defer stop()
				sent := map[string]time.Time{}
				begun := time.Now()
				refused := 0
				for good := 0; time.Since(begun) < 30*time.Second; time.Sleep(10 * time.Millisecond) {
					for passed := time.Since(begun).Seconds(); float64(refused) < passed*test.perSecond; refused++ {
						mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", refused), refused+1))
					}
					for passed := time.Since(begun).Seconds(); float64(good) < passed*50; good++ {
						name := fmt.Sprint("good-", good)
						sent[name] = time.Now()
						mustTake(t, p, change(t, name, 100_000+good))
					}
				}
				time.Sleep(15 * time.Second)
				waits := sink.waits(t, sent)
				if p99 := waits[len(waits)*99/100]; p99 > time.Second {
					t.Errorf("the p99 of good changes is %v", p99)
				}
				dead.mu.Lock()
				dead.fail = nil
				dead.mu.Unlock()
				for n := 0; n < 3600 && len(dead.ids()) < refused; n++ { // without good ones the sink would be blamed
					mustTake(t, p, change(t, "good", 200_000+n))
					time.Sleep(time.Second)
				}
				drain(t, p)
				if got := dead.ids(); len(got) != refused {
					t.Errorf("got %d letters of %d", len(got), refused)
				}
			})
		})
	}
}

// A record whose dead letter cannot be written is not overtaken by later changes of its object: the next run sends it again.
func TestNothingOvertakesARecordWithoutALetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &script{}
		sink.set(func(_ int, batch []sinks.Record) error {
			errs := make([]error, len(batch))
			for n := range batch {
				if strings.Contains(batch[n].ID, "/1/") {
					errs[n] = sinks.Permanent(sinks.ReasonTooLarge, errDown)
				}
			}
			return &sinks.BatchError{Errs: errs}
		})
		b := newLogbook()
		p, stop := launch(sink, &letters{fail: errDown}, spilling(b, 1<<20, 1<<30))
		mustTake(t, p, change(t, "a", 1))
		time.Sleep(time.Second)
		mustTake(t, p, change(t, "a", 2))
		mustTake(t, p, change(t, "b", 3))
		time.Sleep(time.Minute)
		if got := sink.storedIDs(); len(got) != 1 || !strings.Contains(got[0], "/3/") {
			t.Errorf("got %v, want the other object only", got)
		}
		stop()
		b.commit(p)
		sink.set(nil)
		p, stop = launch(sink, &letters{}, spilling(b, 1<<20, 1<<30))
		defer stop()
		drain(t, p)
		if got := sink.storedIDs(); len(got) != 3 {
			t.Errorf("got %v", got)
		}
		checkOrder(t, sink.storedIDs())
	})
}

// A record of a failing object that is damaged on disk becomes a dead letter, and later ones of the object wait for that.
func TestDamagedRecordOfAFailingObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, dead, b := &script{}, &letters{fail: errDown}, newLogbook()
		sink.set(func(int, []sinks.Record) error { return errDown })
		p := start(t, sink, dead, spilling(b, 1<<20, 1<<30))
		for version := 1; version <= 4; version++ {
			mustTake(t, p, change(t, "a", version))
		}
		time.Sleep(time.Second)
		b.commit(p)
		time.Sleep(time.Minute)
		b.mu.Lock()
		b.entries[1] = delta.Entry{LogKey: b.entries[1].LogKey, Delta: &delta.Delta{Type: delta.Modified, Object: &delta.Object{}, Bare: true}, Unsendable: "damaged"}
		b.mu.Unlock()
		failure := p.Stats().LastError
		sink.set(nil)
		time.Sleep(time.Minute)
		if got := sink.storedIDs(); len(got) != 1 {
			t.Errorf("got %v, want what is before the damaged one only", got)
		}
		if got := p.Stats().LastError; got != failure {
			t.Errorf("what waits for the letter counts as failed: %s", got)
		}
		dead.mu.Lock()
		dead.fail = nil
		dead.mu.Unlock()
		settled(t, p, b)
		if got := sink.storedIDs(); len(got) != 3 || len(dead.got) != 1 || dead.got[0].Error != "damaged" || dead.got[0].Record.Body != nil {
			t.Errorf("got %v, and the letters %+v", got, dead.got)
		}
		checkOrder(t, sink.storedIDs())
	})
}

// While a sink refuses everything, records wait also where a caller once waited for a commit: not for anything to be delivered.
func TestRefusedProbesWaitBehindACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, dead, b := &script{}, &letters{}, newLogbook()
		sink.set(func(_ int, batch []sinks.Record) error {
			errs := make([]error, len(batch))
			for n := range errs {
				errs[n] = sinks.Permanent(sinks.ReasonRejected, errDown)
			}
			return &sinks.BatchError{Errs: errs}
		})
		p, stop := launch(sink, dead, spilling(b, 256<<10, 1<<30))
		defer stop()
		for n := range 300 {
			mustTake(t, p, sized(t, fmt.Sprint("first-", n), n+1, 1<<10))
		}
		time.Sleep(time.Second)
		for n := 300; ; n++ {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			err := p.Delta(ctx, sized(t, fmt.Sprint("second-", n), n+1, 64<<10))
			cancel()
			if err != nil {
				break
			}
		}
		defer b.commits(p, 200*time.Millisecond)()
		mustTake(t, p, change(t, "third", 10_000))
		before := len(dead.ids())
		time.Sleep(10 * time.Minute)
		if after := len(dead.ids()); after > before || before > 10 {
			t.Errorf("%d dead letters, and %d later", before, after)
		}
		sink.set(nil)
		settled(t, p, b)
	})
}
