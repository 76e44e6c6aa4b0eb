package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// upper is a transform that puts a member into capitals and takes another away; it fails where that is "unfit".
type upper struct{ member, gone string }

func (u upper) Apply(_ context.Context, object map[string]any, _ shape.TransformInput) error {
	text, _ := object[u.member].(string)
	if text == "unfit" {
		return fmt.Errorf("%s does not fit", u.member)
	}
	object[u.member] = strings.ToUpper(text)
	delete(object, u.gone)
	return nil
}

func version(t testing.TB, resourceVersion int, fields string) *delta.Object {
	t.Helper()
	object, err := delta.NewObject(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"%d"},%s}`, resourceVersion, fields))
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// take gives a pipeline one delta and returns whether the object passes, and whether the change is filtered out.
func take(t testing.TB, p *Pipeline, d *delta.Delta, before bool) (passes, filtered bool) {
	t.Helper()
	ticket, err := p.Reserve(t.Context(), d, before)
	if err != nil {
		t.Fatal(err)
	}
	p.Take(ticket)
	return ticket.Passes(), ticket.filtered
}

// Nothing but the identity of what a transform could not handle leaves, not even in the dead letter.
func TestFailedTransformLeaksNothing(t *testing.T) {
	sink, dead := &script{}, &letters{}
	p := start(t, sink, dead, func(o *Options) { o.Transforms = []shape.Transform{upper{"word", "secret"}} })
	take(t, p, &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7, `"word":"unfit","secret":"s3cret"`)}, true)
	drain(t, p)
	if len(dead.got) != 1 || len(sink.storedIDs()) != 0 {
		t.Fatalf("got letters %v, records %v", dead.ids(), sink.storedIDs())
	}
	letter, err := json.Marshal(dead.got[0])
	if err != nil || strings.Contains(string(letter), "s3cret") || !strings.Contains(string(letter), `"uid":"u"`) {
		t.Errorf("got %s, %v", letter, err)
	}
	if len(dead.got[0].Record.Body) > 0 { // a replay would send it as if it were the change
		t.Errorf("the letter has the body %s", dead.got[0].Record.Body)
	}
}

// oneAtATime is a filter that records how many objects are being filtered.
type oneAtATime struct{ now, most *atomic.Int32 }

func (f oneAtATime) Pass(*shape.Change) (bool, error) {
	defer f.now.Add(-1)
	if now := f.now.Add(1); now > f.most.Load() {
		f.most.Store(now)
	}
	for range 10 { // no sleep: the clock of the bubble stands while a goroutine waits for a mutex
		runtime.Gosched()
	}
	return true, nil
}

func (oneAtATime) OfObject() bool { return true }

// Large objects of all watches and pipelines are decoded one at a time, and one that waits for room in a pipeline holds up no
// other pipeline.
func TestLargeObjectsOneAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		filter := oneAtATime{new(atomic.Int32), new(atomic.Int32)}
		shared := new(sync.Mutex)
		away := &tenants{away: true, took: map[string]time.Time{}}
		well := &tenants{took: map[string]time.Time{}}
		var pipelines []*Pipeline
		for _, sink := range []*tenants{away, well} {
			p, stop := launch(sink, &letters{}, func(o *Options) {
				o.MaxBytes, o.Large, o.Filters = 1<<20, shared, []shape.Filter{filter}
			})
			defer stop()
			pipelines = append(pipelines, p)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var watches sync.WaitGroup
		for watch := range 6 {
			watches.Go(func() {
				for n := range 5 {
					_ = pipelines[0].Delta(ctx, largeChange(t, fmt.Sprintf("a-%d-%d", watch, n), n+1, 128<<10))
				}
			})
			watches.Go(func() {
				for n := range 5 {
					d := largeChange(t, fmt.Sprintf("b-%d-%d", watch, n), n+1, 128<<10)
					if err := pipelines[1].Delta(t.Context(), d); err != nil || !pipelines[1].Shaper().Passes(d) {
						t.Error("it is filtered: ", err)
					}
				}
			})
		}
		time.Sleep(10 * time.Second)
		well.mu.Lock()
		if len(well.took) != 30 {
			t.Errorf("%d of 30 objects arrived beside a pipeline that is full", len(well.took))
		}
		well.mu.Unlock()
		if most := filter.most.Load(); most != 1 {
			t.Errorf("%d large objects at once", most)
		}
		cancel()
		watches.Wait()
	})
}
