package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// recorder is a handler that keeps what it gets.
type recorder struct {
	mu     sync.Mutex
	deltas []*delta.Delta
	gaps   []*delta.Gap
	marks  []*delta.Mark
	order  []string       // ids, and "gap"
	state  map[string]any // name → uid/version, according to the deltas
	wrong  []string       // what breaks the rules of a history
	// commits keeps captures and hand-overs apart.
	commits sync.RWMutex
	block   chan struct{} // if set, Delta waits for it
}

func (r *recorder) Update(change func()) {
	r.commits.RLock()
	defer r.commits.RUnlock()
	change()
}

func (r *recorder) Exclusive(do func()) {
	r.commits.Lock()
	defer r.commits.Unlock()
	do()
}

func (*recorder) Commit(context.Context) error { return nil }

func (r *recorder) Delta(ctx context.Context, d *delta.Delta, to Recipients, record func(PipelineSet)) error {
	r.mu.Lock()
	block := r.block
	r.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.commits.RLock()
	defer r.commits.RUnlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	record(to.Pipelines)
	if to.RecordOnly == to.Pipelines {
		return nil
	}
	r.deltas = append(r.deltas, d)
	r.order = append(r.order, shortID(d))
	if r.state == nil {
		r.state = map[string]any{}
	}
	name := d.Object.Name()
	_, exists := r.state[name]
	switch {
	case d.Type == delta.Added && exists && !d.Snapshot, d.Type == delta.Modified && !exists, d.Type == delta.Deleted && !exists:
		r.wrong = append(r.wrong, fmt.Sprintf("%s of %s, existing: %v", shortID(d), name, exists))
	}
	if d.Type == delta.Deleted {
		delete(r.state, name)
	} else {
		r.state[name] = string(d.Object.UID()) + "/" + d.Object.ResourceVersion()
	}
	return nil
}

func (r *recorder) Gap(_ context.Context, g *delta.Gap, record func()) error {
	r.Update(record)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gaps = append(r.gaps, g)
	r.order = append(r.order, "gap")
	return nil
}

// recorder has one pipeline, which always has room.
func (r *recorder) Recipient(int) Recipient { return roomy{r} }

type roomy struct{ *recorder }

func (r roomy) Offer(ctx context.Context, d *delta.Delta, _ bool, record func(bool)) bool {
	return r.recorder.Delta(ctx, d, Recipients{Pipelines: 1}, func(passed PipelineSet) { record(passed.Has(0)) }) == nil
}

func (r roomy) OfferMark(m *delta.Mark, record func()) bool {
	r.Update(record)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.marks = append(r.marks, m)
	return true
}

func (roomy) Room(context.Context) error            { return nil }
func (roomy) Settled(context.Context, string) error { return nil }
func (roomy) Undelivered(string) (int, string)      { return 0, "" }
func (roomy) Lacking(string, uint64) Lacking        { return Lacking{} }

// shortID is uid/version/TYPE with a letter for each flag.
func shortID(d *delta.Delta) string {
	_, id, _ := strings.Cut(d.ID(""), "/")
	for flag, set := range map[string]bool{"+s": d.Snapshot, "+i": d.Inferred} {
		if set {
			id += flag
		}
	}
	return id
}

func (r *recorder) ids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

// run runs a source on the server until the test ends, with short pauses between attempts.
func run(t testing.TB, server *sourcetest.Server, handler Handler, adjust func(*Options)) *Source {
	t.Helper()
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	return runWith(t, client, handler, adjust)
}

func runWith(t testing.TB, client *Client, handler Handler, adjust func(*Options)) *Source {
	t.Helper()
	options := Options{
		Name: "test", Resources: []schema.GroupVersionResource{sourcetest.Things}, absence: absenceRule{answers: 1}, Snapshot: delta.SnapshotInitial, Pipelines: []string{"recorder"},
		Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 1000, Factor: 1},
	}
	if adjust != nil {
		adjust(&options)
	}
	s := New(client, options, handler, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return s
}

func eventually(t testing.TB, what func() string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		problem := what()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(problem)
		}
	}
}

func (r *recorder) expect(t testing.TB, want ...string) {
	t.Helper()
	eventually(t, func() string {
		if got := r.ids(); !slices.Equal(got, want) {
			return fmt.Sprintf("got  %v\nwant %v", got, want)
		}
		return ""
	})
}

func TestHistoryIsExactThroughEveryInterruption(t *testing.T) {
	for name, interrupt := range map[string]func(*sourcetest.Server){
		"watch ends":       func(s *sourcetest.Server) { s.Cut(false) },
		"cut in mid-line":  func(s *sourcetest.Server) { s.Cut(true) },
		"500 at the start": func(s *sourcetest.Server) { s.Deny(500, 3); s.Cut(false) },
		"503 at the start": func(s *sourcetest.Server) { s.Deny(503, 3); s.Cut(false) },
		"504 at the start": func(s *sourcetest.Server) { s.Deny(504, 3); s.Cut(false) },
		"403 at the start": func(s *sourcetest.Server) { s.Deny(403, 3); s.Cut(false) },
		"429 at the start": func(s *sourcetest.Server) { s.Deny(429, 1); s.Cut(false) },
		"resets":           func(s *sourcetest.Server) { s.Deny(0, 3); s.Cut(false) },
	} {
		t.Run(name, func(t *testing.T) {
			server, r := sourcetest.New(t), &recorder{}
			server.Write("a", false) // u11/11
			run(t, server, r, nil)
			r.expect(t, "u11/11/ADDED+s")
			interrupt(server)
			server.Write("a", false)
			server.Write("a", true)
			server.Write("a", false)
			r.expect(t, "u11/11/ADDED+s", "u11/12/MODIFIED", "u11/13/DELETED", "u14/14/ADDED")
			if len(r.gaps) > 0 {
				t.Errorf("got gaps %+v", r.gaps)
			}
		})
	}
}

func TestRefusalMakesAGapAndTheNetDifference(t *testing.T) {
	for name, inStream := range map[string]bool{"as HTTP answer": false, "inside the stream": true} {
		t.Run(name, func(t *testing.T) {
			server, r := sourcetest.New(t), &recorder{}
			server.InStream = inStream
			for _, object := range []string{"kept", "changed", "deleted", "recreated"} {
				server.Write(object, false) // 11 to 14
			}
			source := run(t, server, r, nil)
			eventually(t, func() string {
				if source.Status()[0].State != StateWatching {
					return "not watching"
				}
				r.mu.Lock()
				defer r.mu.Unlock()
				return map[bool]string{true: "the snapshot is not complete"}[len(r.marks) < 1]
			})
			server.Deny(503, 1<<30) // so that nothing of what follows is seen
			server.Cut(false)
			server.Write("changed", false)  // 15
			server.Write("deleted", true)   // 16
			server.Write("recreated", true) // 17
			server.Write("recreated", false)
			server.Write("new", false) // 19
			server.Compact()           // 20
			server.Deny(0, 0)
			eventually(t, func() string {
				if got := r.ids(); !slices.Contains(got, "u19/19/ADDED+i") || !slices.Contains(got, "u12/15/MODIFIED+i") ||
					!slices.Contains(got, "u13/13/DELETED+i") || !slices.Contains(got, "u18/18/ADDED+i") {
					return fmt.Sprintf("got %v", got)
				}
				return ""
			})
			got := r.ids()[4:]
			if len(got) != 6 || got[0] != "gap" {
				t.Errorf("got %v, want a gap and five deltas", got)
			}
			if slices.Index(got, "u14/14/DELETED+i") > slices.Index(got, "u18/18/ADDED+i") {
				t.Errorf("the old object's DELETED comes after the new one's ADDED: %v", got)
			}
			if g := r.gaps[0]; versionOf(g.From) != "14" || versionOf(g.To) != "20" || g.Reason != "refused" {
				t.Errorf("got gap %+v", g)
			}
			for _, d := range r.deltas[4:] {
				if d.Type == delta.Deleted && (!d.FinalStateUnknown || d.Object.Kind() != "Thing" || d.Object.Namespace() != "ns") {
					t.Errorf("inferred DELETED: got %s, final state unknown: %v", d.Object.JSON(), d.FinalStateUnknown)
				}
				// The object recreated was gone before its successor came, the one deleted by the version of the list.
				if want := map[string]uint64{"u13/13/DELETED+i": 20, "u14/14/DELETED+i": 17}[shortID(d)]; want > 0 && d.Sequence != want {
					t.Errorf("%s: got as of %d, want %d", shortID(d), d.Sequence, want)
				}
			}
		})
	}
}

func TestSnapshotNeverIsSilent(t *testing.T) {
	server, r := sourcetest.New(t), &recorder{}
	server.Write("a", false)
	source := run(t, server, r, func(o *Options) { o.Snapshot = delta.SnapshotNever })
	eventually(t, func() string {
		if s := source.Status()[0]; s.Known != 1 {
			return fmt.Sprintf("got %+v", s)
		}
		return ""
	})
	server.Write("a", false)
	r.mu.Lock()
	r.state = map[string]any{"a": nil}
	r.mu.Unlock()
	r.expect(t, "u11/12/MODIFIED")
}

func TestReadsPages(t *testing.T) {
	server, r := sourcetest.New(t), &recorder{}
	for n := range 10 {
		server.Write(fmt.Sprint("object-", n), false)
	}
	run(t, server, r, nil)
	eventually(t, func() string {
		if n := len(r.ids()); n != 10 {
			return fmt.Sprintf("got %d", n)
		}
		return ""
	})
	server.Write("object-3", true)
	eventually(t, func() string {
		if got := r.ids(); got[len(got)-1] != "u14/21/DELETED" {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
	if d := r.deltas[0]; d.Object.Kind() != "Thing" || d.Object.APIVersion() != "v1" {
		t.Errorf("got %s", d.Object.JSON())
	}
}

func TestResourceThatComesAndGoes(t *testing.T) {
	server, r := sourcetest.New(t), &recorder{}
	server.SetMissing(true)
	source := run(t, server, r, nil)
	eventually(t, func() string {
		if s := source.Status()[0]; s.State != StateMissing || !s.Ready {
			return fmt.Sprintf("got %+v", s)
		}
		return ""
	})
	server.Write("a", false)
	server.Write("b", false)
	server.SetMissing(false)
	eventually(t, func() string {
		if n := len(r.ids()); n != 2 {
			return fmt.Sprintf("got %d", n)
		}
		return ""
	})
	server.SetMissing(true)
	eventually(t, func() string {
		got := r.ids()
		if len(got) != 5 || got[2] != "gap" || !slices.Contains(got, "u12/12/DELETED+i") || !slices.Contains(got, "u13/13/DELETED+i") {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
	for _, d := range r.deltas[2:] {
		if d.Sequence < 13 { // a DELETED is above others of its sequence
			t.Errorf("%s has the sequence %d", shortID(d), d.Sequence)
		}
	}
	server.SetMissing(false)
	server.Write("a", false)
	eventually(t, func() string {
		if got := r.ids(); len(got) != 6 {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
	if len(r.gaps) != 1 || len(r.wrong) != 0 {
		t.Errorf("got gaps %v, wrong %v", r.gaps, r.wrong)
	}
}

// A handler that blocks stalls the watch; its end does not depend on the handler.
func TestBlockedHandler(t *testing.T) {
	server, r := sourcetest.New(t), &recorder{block: make(chan struct{})}
	for n := range 50 {
		server.Write(fmt.Sprint("object-", n), false)
	}
	source := run(t, server, r, nil)
	eventually(t, func() string {
		if s := source.Status()[0]; !s.Blocked || !s.Ready {
			return fmt.Sprintf("got %+v", s)
		}
		return ""
	})
	close(r.block)
	eventually(t, func() string {
		if n := len(r.ids()); n != 50 {
			return fmt.Sprintf("got %d", n)
		}
		return ""
	})
}

func TestNearResourceIsSuggested(t *testing.T) {
	server := sourcetest.New(t)
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.resolve(t.Context(), schema.GroupVersionResource{Version: "v1", Resource: "thing"}); !errors.Is(err, ErrMissing) ||
		!strings.Contains(err.Error(), "did you mean v1/things?") {
		t.Errorf("got %v", err)
	}
}

// Whatever happens between an API server and kubeferry, the deltas are a possible history that ends in the server's
// state; without a refusal they are the server's own history, each change once, nothing inferred.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		server, r := sourcetest.New(t), &recorder{}
		server.InStream = rapid.Bool().Draw(rt, "410 inside the stream")
		name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"})
		for range rapid.IntRange(0, 8).Draw(rt, "objects before the start") {
			server.Write(name.Draw(rt, "name"), false)
		}
		before := server.Version()
		source := run(t, server, r, nil)
		if rapid.Bool().Draw(rt, "state read before the rest") {
			eventually(t, func() string {
				if source.Status()[0].State != StateWatching {
					return "not watching"
				}
				return ""
			})
		} else {
			before = 1 << 30 // no telling which changes the state swallows
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch step := rapid.IntRange(0, 12).Draw(rt, "step"); step {
			case 0, 1, 2, 3:
				server.Write(name.Draw(rt, "name"), false)
			case 4, 5:
				server.Write(name.Draw(rt, "name"), true)
			case 6:
				server.Cut(rapid.Bool().Draw(rt, "in mid-line"))
			case 7:
				server.Compact()
			case 8:
				server.Deny(rapid.SampledFrom([]int{0, 403, 500, 503, 504}).Draw(rt, "denial"), rapid.IntRange(1, 3).Draw(rt, "times"))
				server.Cut(false)
			case 9:
				time.Sleep(time.Duration(rapid.IntRange(0, 3).Draw(rt, "ms")) * time.Millisecond)
			case 10:
				server.Expire(rapid.SliceOfNDistinct(name, 2, 6, rapid.ID).Draw(rt, "names")...)
			case 11:
				server.CutBehind(rapid.IntRange(1, 3).Draw(rt, "deletions"))
			case 12:
				server.Restart()
			}
		}
		server.Write("last", false) // once it arrives, all before it has been seen
		eventually(t, func() string { return r.differs(server) })
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.wrong) > 0 {
			rt.Fatalf("not a history: %v", r.wrong)
		}
		if len(r.gaps) == 0 && before < 1<<30 {
			var want, got []string
			for _, c := range server.History() {
				if c.Version > before {
					want = append(want, c.ID())
				}
			}
			for _, id := range r.order {
				if !strings.HasSuffix(id, "+s") {
					got = append(got, id)
				}
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("got  %v\nwant %v", got, want)
			}
		}
		if len(r.gaps) > 0 && server.Refusals() == 0 {
			rt.Fatalf("a gap without a refusal: %+v", r.gaps)
		}
	})
}

// differs returns how the state according to the deltas differs from the server's; empty if it does not.
func (r *recorder) differs(server *sourcetest.Server) string {
	want := map[string]any{}
	for _, o := range server.State(sourcetest.Things) {
		want[o.Name] = fmt.Sprintf("%s/%d", o.UID(), o.Version)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if fmt.Sprint(r.state) != fmt.Sprint(want) && len(want)+len(r.state) > 0 {
		return fmt.Sprintf("got  %v\nwant %v\nafter %v", r.state, want, r.order)
	}
	return ""
}
