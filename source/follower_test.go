package source

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// answerWatches puts a handler before a server that, while it is on, answers each watch with one event and ends it.
func answerWatches(t *testing.T, server *sourcetest.Server, event string) (front *sourcetest.Server, on *atomic.Bool, answers *atomic.Int64) {
	t.Helper()
	on, answers = &atomic.Bool{}, &atomic.Int64{}
	front = before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) || !on.Load() {
			return false
		}
		answers.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, event)
		return true
	})
	return front, on, answers
}

// before puts a handler before a server; it answers itself if it returns true.
func before(t *testing.T, server *sourcetest.Server, first func(w http.ResponseWriter, r *http.Request) bool) *sourcetest.Server {
	t.Helper()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval = -1
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !first(w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		server.Cut(false)
		front.CloseClientConnections()
		front.Close()
	})
	return &sourcetest.Server{Server: front}
}

const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"too old resource version","reason":"Expired","code":410}`

func isWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// A server that lists and refuses every watch behind the list: each attempt reads the whole state and sends a gap record.
func TestRefusedForEver(t *testing.T) {
	for name, inStream := range map[string]bool{"as HTTP answer": false, "inside the stream": true} {
		t.Run(name, func(t *testing.T) {
			server := things(t, "a", "b")
			server.NoWatchList = true
			var lists atomic.Int64
			front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "/things") && !isWatch(r) && r.URL.Query().Get("limit") != "1" {
					lists.Add(1)
				}
				if !isWatch(r) || r.URL.Query().Get("sendInitialEvents") != "" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				if inStream {
					fmt.Fprintf(w, `{"type":"ERROR","object":%s}`+"\n", expired)
				} else {
					w.WriteHeader(http.StatusGone)
					fmt.Fprint(w, expired)
				}
				return true
			})
			r := &recorder{}
			run(t, front, r, func(o *Options) {
				o.Backoff = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 2, Steps: 10, Cap: time.Second}
			})
			time.Sleep(3 * time.Second)
			r.mu.Lock()
			gaps := len(r.gaps)
			r.mu.Unlock()
			// 10+20+40+…+640+1000 ms: eight or nine attempts, if they are spaced.
			if gaps > 15 {
				t.Errorf("in 3 s: %d gap records, the state read %d times", gaps, lists.Load())
			}
		})
	}
}

// A server whose watches repeat the last event, and end, brings nothing: the next ones wait.
func TestWatchesThatOnlyRepeat(t *testing.T) {
	server := things(t, "a")
	front, repeats, watches := answerWatches(t, server, `{"type":"ADDED","object":{"metadata":{"name":"b","namespace":"default","uid":"u12","resourceVersion":"12"}}}`)
	r := &recorder{}
	run(t, front, r, func(o *Options) {
		o.Backoff = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 10, Cap: time.Second}
	})
	r.expect(t, "u11/11/ADDED+s")
	server.Write("b", false)
	r.expect(t, "u11/11/ADDED+s", "u12/12/ADDED")
	repeats.Store(true)
	server.Cut(false)
	time.Sleep(time.Second)
	if n := watches.Load(); n == 0 || n > 5 {
		t.Errorf("%d watches in a second", n)
	}
}

// A proxy answers a watch with 200 and a page of its own.
func TestForeignAnswerIsReported(t *testing.T) {
	for name, answer := range map[string]func(w http.ResponseWriter){
		"HTML without a line break": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, "<html><body>please log in</body></html>")
		},
		"HTML": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, "<html>\n<body>please log in</body>\n</html>\n")
		},
		"no content": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) },
	} {
		t.Run(name, func(t *testing.T) {
			server := things(t, "a")
			var foreign atomic.Bool
			var answers atomic.Int64
			front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
				if !foreign.Load() || !strings.HasSuffix(r.URL.Path, "/things") {
					return false
				}
				answer(w)
				answers.Add(1)
				return true
			})
			r := &recorder{}
			source := run(t, front, r, nil)
			r.expect(t, "u11/11/ADDED+s")
			foreign.Store(true)
			deadline := time.Now().Add(20 * time.Second)
			for source.Status()[0].State != StateFailing {
				if answers.Load() == 0 { // else the watch may just have been opened when it was cut
					server.Cut(false)
				}
				if time.Now().After(deadline) {
					s := source.Status()[0]
					t.Fatalf("after %d such answers the watch is %s, error %q, ready %v", answers.Load(), s.State, s.Error, s.Ready)
				}
				time.Sleep(100 * time.Microsecond)
			}
		})
	}
}

// The smallest list, that compares versions at the start, is answered 410 once: no history was requested, so none is refused.
func TestGoneForAMomentIsNoGap(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.stop()
	server.Write("a", false) // 13
	server.Write("a", false) // 14
	var once atomic.Bool
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if isWatch(r) || r.URL.Query().Get("limit") != "1" || once.Swap(true) {
			return false
		}
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, "the service moved")
		return true
	})
	l = live(t, front, m, []string{"p"}, nil)
	l.expect("p", "u11/13/MODIFIED", "u11/14/MODIFIED")
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
}

// The program stops while the objects of a resource that is gone are being reported.
func TestStoppedWhileGone(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	never := func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever }
	l := live(t, server, m, []string{"p"}, func(o *Options, l *life) { never(o, l); l.after = 1 })
	l.watching(12)
	server.SetMissing(true) // one DELETED is taken, the other blocks
	eventually(t, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.handed < 2 {
			return fmt.Sprint("handed ", l.handed)
		}
		return ""
	})
	l.stop()
	if meta := m.only(t); !meta.Gone || meta.Position == "" {
		t.Errorf("a reading that was not finished left %+v", meta)
	}
	server.SetMissing(false)
	server.Write("c", false) // created while no watch was open
	version := server.Version()
	l = live(t, server, m, []string{"p"}, never)
	l.watching(version)
	if got := l.sorted("p"); !slices.ContainsFunc(got, func(id string) bool { return strings.Contains(id, fmt.Sprintf("/%d/ADDED", version)) }) {
		t.Errorf("the new object is not reported: %v", got)
	}
	l.stop()
}

// Without snapshots, what comes with a resource that an earlier run did not find is new, also if it comes while no run watches.
func TestStoppedWhileAbsent(t *testing.T) {
	for _, first := range []delta.Snapshot{delta.SnapshotNever, delta.SnapshotInitial} {
		t.Run(string(first), func(t *testing.T) {
			server, m := sourcetest.New(t), newMemory()
			server.SetMissing(true)
			l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = first })
			l.reaches(StateMissing)
			l.stop()
			server.SetMissing(false)
			server.Write("c", false)
			version := server.Version()
			l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever })
			l.watching(version)
			l.expect("p", fmt.Sprintf("u%d/%d/ADDED+i", version, version))
		})
	}
}

// A restart before the first state could be read makes nothing new of what exists: with watch-lists, only the right to watch was missing.
func TestStoppedBeforeTheFirstState(t *testing.T) {
	server, m := things(t, "c"), newMemory() // 11
	var denied atomic.Bool
	denied.Store(true)
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		forbidden := denied.Load() && r.URL.Query().Get("watch") != ""
		if forbidden {
			w.WriteHeader(http.StatusForbidden)
		}
		return forbidden
	})
	never := func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever }
	l := live(t, front, m, []string{"p"}, never)
	l.reaches(StateFailing)
	l.stop()
	denied.Store(false)
	l = live(t, front, m, []string{"p"}, never)
	l.watching(11)
	server.Write("c", false) // 12
	l.expect("p", "u11/12/MODIFIED")
}

// The same where the configuration had snapshots when the resource went.
func TestSnapshotsEndWhileAbsent(t *testing.T) {
	server, m := things(t, "c"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	server.SetMissing(true)
	l.expect("p", "u11/11/ADDED+s", "gap 11-", "u11/11/DELETED+i")
	l.stop()
	server.SetMissing(false)
	server.Write("c", false)
	version := server.Version()
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever })
	l.expect("p", fmt.Sprintf("u%d/%d/ADDED+i", version, version))
}

// An event without a resource version does not cost the position.
func TestEventWithoutResourceVersion(t *testing.T) {
	server := things(t, "a")
	var watches sync.Map
	var n atomic.Int64
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) {
			return false
		}
		number := n.Add(1)
		watches.Store(number, r.URL.Query().Get("resourceVersion"))
		if number != 2 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Thing","metadata":{}}}`)
		return true
	})
	r := &recorder{}
	source := run(t, front, r, nil)
	r.expect(t, "u11/11/ADDED+s")
	eventually(t, func() string {
		if s := source.Status()[0]; s.State != StateWatching {
			return string(s.State)
		}
		return ""
	})
	eventually(t, func() string {
		if n.Load() == 1 { // it may not be open yet
			server.Cut(false)
		}
		if _, opened := watches.Load(int64(3)); !opened {
			return fmt.Sprint(n.Load())
		}
		return ""
	})
	if from, _ := watches.Load(int64(3)); from != "11" {
		t.Errorf("the watch after it begins at %q", from)
	}
}

// An error of the server is reported, whatever its text.
func TestErrorThatSpeaksOfAConnection(t *testing.T) {
	server := things(t, "a")
	front, failing, answers := answerWatches(t, server, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"rpc error: code = Unavailable desc = read tcp 10.0.0.1:2379: connection reset by peer","reason":"InternalError","code":500}}`)
	r := &recorder{}
	source := run(t, front, r, nil)
	r.expect(t, "u11/11/ADDED+s")
	server.Write("b", false)
	r.expect(t, "u11/11/ADDED+s", "u12/12/ADDED") // so the watch is open, and can be cut
	failing.Store(true)
	server.Cut(false)
	deadline := time.Now().Add(20 * time.Second)
	for source.Status()[0].State != StateFailing {
		if time.Now().After(deadline) {
			s := source.Status()[0]
			t.Fatalf("after %d errors the watch is %s, error %q", answers.Load(), s.State, s.Error)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// A watch that was interrupted is not opened before its position was compared with the server's: the history may have gone
// back meanwhile, and a server that cannot answer a list may grant a watch all the same.
func TestInterruptedWatchWaitsForComparison(t *testing.T) {
	server := things(t, "a", "b") // 11, 12
	var watched, interrupted atomic.Bool
	var refused atomic.Int32
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case !interrupted.Load():
			watched.Store(watched.Load() || isWatch(r))
		case isWatch(r):
			if refused.Load() < 3 {
				t.Error("a watch was opened before the comparison")
			}
		case refused.Add(1) < 3:
			http.Error(w, "overloaded", http.StatusInternalServerError)
			return true
		}
		return false
	})
	r := &recorder{}
	run(t, front, r, nil)
	eventually(t, func() string {
		if n := len(r.ids()); n != 2 || !watched.Load() {
			return fmt.Sprint(n)
		}
		return ""
	})
	server.Write("c", false) // 13: comes by the watch, so that is open
	eventually(t, func() string {
		if n := len(r.ids()); n != 3 {
			return fmt.Sprint(n)
		}
		return ""
	})
	interrupted.Store(true)
	server.RollBack(11)
	server.Cut(false)
	eventually(t, func() string {
		return map[bool]string{true: "the rollback was not noticed"}[!slices.Contains(r.ids(), "gap")]
	})
}

// slowly is a handler that takes each delta in a tenth of a second: that is slow, and not blocked.
type slowly struct{ *recorder }

func (s slowly) Delta(ctx context.Context, d *delta.Delta, to Recipients, record func(PipelineSet)) error {
	if d.Type == delta.Deleted {
		time.Sleep(100 * time.Millisecond)
	}
	return s.recorder.Delta(ctx, d, to, record)
}

// Many inferred deletes that a handler takes one by one are no full backlog.
func TestSlowIsNotBlocked(t *testing.T) {
	server := sourcetest.New(t)
	for n := range 20 {
		server.Write(fmt.Sprint("object-", n), false)
	}
	r := &recorder{}
	source := run(t, server, slowly{r}, nil)
	eventually(t, func() string {
		if n := len(r.ids()); n != 20 {
			return fmt.Sprint(n)
		}
		return ""
	})
	for n := range 20 {
		server.Write(fmt.Sprint("object-", n), true)
	}
	server.Compact()
	server.Cut(false)
	eventually(t, func() string {
		n := len(r.ids())
		if source.Status()[0].Blocked {
			t.Fatalf("blocked, though %d are taken, ten a second", n-20)
		}
		if n < 40 {
			return fmt.Sprint(n)
		}
		return ""
	})
}

// The state at the position is forgotten and the history since is not: what happened since comes at the speed of the server.
func TestCatchesUpWhereTheStateIsRefused(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(12)
	l.stop()
	for range 40 {
		server.Write("a", false) // 13 to 52
	}
	server.CompactStates()
	begun := time.Now()
	l = live(t, server, m, []string{"old", "new"}, func(o *Options, _ *life) { o.Backoff = wait.Backoff{} })
	eventually(t, func() string {
		if got := l.sorted("old"); !slices.Contains(got, "u11/52/MODIFIED") {
			return fmt.Sprint(len(got), " of 40")
		}
		return ""
	})
	t.Logf("40 changes took %v", time.Since(begun))
	if took := time.Since(begun); took > 8*time.Second { // with a wait behind each it is ten at least
		t.Errorf("40 changes took %v", took)
	}
}

// What client-go logs of its own is not wanted: an ERROR at each stop that cuts a list short, for one.
func TestNoLinesOfClientGo(t *testing.T) {
	var lines strings.Builder
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelWarn})))
	defer klog.ClearLogger()
	server := things(t, "a", "b")
	server.NoWatchList = true
	begun := make(chan struct{}, 100)
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if isWatch(r) || !strings.HasSuffix(r.URL.Path, "/things") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ThingList",`)
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		<-r.Context().Done()
		return true
	})
	l := live(t, front, newMemory(), []string{"p"}, nil)
	<-begun
	time.Sleep(50 * time.Millisecond)
	l.stop()
	if lines.Len() > 0 {
		t.Errorf("logged %s", lines.String())
	}
}

// A watch that was quiet for long and ends with an error is opened again soon, each time.
func TestQuietWatchIsOpenedAgainSoon(t *testing.T) {
	server := things(t, "a")
	var mu sync.Mutex
	var waited []time.Duration
	var ended time.Time
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) || r.URL.Query().Get("sendInitialEvents") != "" {
			return false
		}
		mu.Lock()
		if !ended.IsZero() {
			waited = append(waited, time.Since(ended).Round(time.Millisecond))
		}
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		select {
		case <-time.After(lasts):
		case <-r.Context().Done():
			return true
		}
		mu.Lock()
		ended = time.Now()
		mu.Unlock()
		fmt.Fprintln(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","message":"etcdserver: leader changed","reason":"InternalError","code":500}}`)
		return true
	})
	r := &recorder{}
	run(t, front, r, func(o *Options) {
		o.Backoff = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Steps: 10, Cap: 8 * time.Second}
	})
	r.expect(t, "u11/11/ADDED+s")
	const n = 5
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		mu.Lock()
		enough := len(waited) >= n
		mu.Unlock()
		if enough {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is not opened again")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if waited[n-1] > 400*time.Millisecond { // doubled each time, it would be 640
		t.Errorf("each watch lasted %v; the waits before the next: %v", lasts, waited)
	}
}

// lasts is longer than minWatchDuration.
const lasts = 1100 * time.Millisecond

// A watch that is cut in the moment it is opened, and a quiet one after it that lasts, are no failure.
func TestQuietWatchAfterACutOneIsNoFailure(t *testing.T) {
	server := things(t, "a")
	var resumed atomic.Int64
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) || r.URL.Query().Get("sendInitialEvents") != "" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		if resumed.Add(1) > 1 {
			select {
			case <-time.After(lasts):
			case <-r.Context().Done():
			}
		}
		return true
	})
	r := &recorder{}
	source := run(t, front, r, nil)
	r.expect(t, "u11/11/ADDED+s")
	eventually(t, func() string {
		if s := source.Status()[0]; s.State != StateWatching {
			return string(s.State)
		}
		return ""
	})
	server.Cut(false)
	for resumed.Load() < 4 {
		if s := source.Status()[0]; s.State != StateWatching {
			t.Fatalf("after %d watches: %s, %s", resumed.Load(), s.State, s.Error)
		}
		time.Sleep(time.Millisecond)
	}
}

// A load balancer that has lost its API servers answers 404 to everything, with the words of an API server that lacks a
// group. Nothing is concluded from it.
func TestNotFoundIsNotGone(t *testing.T) {
	server := things(t, "a", "b")
	var lost atomic.Bool
	var answers atomic.Int64
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !lost.Load() {
			return false
		}
		answers.Add(1)
		http.NotFound(w, r)
		return true
	})
	r := &recorder{}
	source := run(t, front, r, nil)
	watching := func() string {
		if s := source.Status()[0]; s.State != StateWatching || s.Known != 2 {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	}
	eventually(t, watching)
	lost.Store(true)
	server.Cut(false)
	eventually(t, func() string {
		if n := answers.Load(); n < 10 {
			return fmt.Sprint("answered ", n)
		}
		return ""
	})
	lost.Store(false)
	server.Write("a", false)
	eventually(t, func() string {
		if got := r.ids(); len(got) < 3 {
			return fmt.Sprint(got)
		}
		return ""
	})
	if got := r.ids()[2:]; !slices.Equal(got, []string{"u11/13/MODIFIED"}) {
		t.Errorf("got %v", got)
	}
}

// A server that ignores resourceVersionMatch answers with the present state where an earlier one was requested. The
// history since is not skipped for it.
func TestPresentStateInPlaceOfAnEarlierOne(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(12)
	l.stop()
	server.Write("a", false) // 13
	server.Write("a", false) // 14
	server.Write("b", true)  // 15
	front := before(t, server, func(_ http.ResponseWriter, r *http.Request) bool {
		if query := r.URL.Query(); !isWatch(r) && query.Has("resourceVersionMatch") {
			query.Del("resourceVersionMatch")
			query.Del("resourceVersion")
			r.URL.RawQuery = query.Encode()
		}
		return false
	})
	l = live(t, front, m, []string{"old", "new"}, nil)
	l.expect("old", "u11/13/MODIFIED", "u11/14/MODIFIED", "u12/15/DELETED")
	eventually(t, func() string { // in the end both are the same
		if got := l.sorted("new"); !slices.Contains(got, "u11/14/ADDED+s") && !slices.Contains(got, "u11/14/MODIFIED") {
			return fmt.Sprint(got)
		}
		return ""
	})
}

// A watch whose bookmarks stop coming is opened again at its position, and that is no failure. Nor is it waited for the first
// bookmark of a watch where one before it sent bookmarks.
func TestWatchWhoseBookmarksStop(t *testing.T) {
	server := things(t, "a")
	var resumed atomic.Int64
	var source atomic.Pointer[Source]
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) || r.URL.Query().Get("sendInitialEvents") != "" {
			return false
		}
		n := resumed.Add(1)
		if n > 2 {
			if s := source.Load().Status()[0]; n == 3 && s.State != StateWatching {
				t.Errorf("got %+v", s)
			}
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		if n == 1 {
			fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Thing","metadata":{"resourceVersion":"11"}}}`)
			server.Write("a", false)
		}
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	})
	client := clientFor(t, front)
	client.bookmark = 500 * time.Millisecond
	r := &recorder{}
	source.Store(runWith(t, client, r, nil))
	eventually(t, func() string {
		if s := source.Load().Status()[0]; s.State != StateWatching {
			return string(s.State)
		}
		return ""
	})
	server.Cut(false)
	r.expect(t, "u11/11/ADDED+s", "u11/12/MODIFIED")
}

func clientFor(t *testing.T, server *sourcetest.Server) *Client {
	t.Helper()
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// One refusal is one gap. Another record of it is sent only for a reading that starts over at a later resource version.
func TestReadingsOfOneGap(t *testing.T) {
	server := things(t, "a", "b", "c", "d", "e")
	var pages atomic.Int64
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("continue") == "" || pages.Add(1) > 3 {
			return false
		}
		if pages.Load() == 2 {
			server.Write("a", false) // 18
		}
		w.WriteHeader(http.StatusGone)
		fmt.Fprint(w, expired)
		return true
	})
	pages.Store(4)
	l := live(t, front, newMemory(), []string{"p"}, nil)
	l.watching(15)
	l.snapshotsDone()
	server.Away(func() { server.Write("a", false); server.Compact(); pages.Store(0) })
	l.watching(18)
	var gaps []string
	l.mu.Lock()
	for _, g := range l.gaps {
		gaps = append(gaps, versionOf(g.From)+"-"+versionOf(g.To))
	}
	l.mu.Unlock()
	if want := []string{"15-17", "15-18"}; !slices.Equal(gaps, want) {
		t.Errorf("got gaps %v, want %v", gaps, want)
	}
	if count := l.source.Status()[0].Gaps; count != 2 {
		t.Errorf("%d gaps are counted, want one for each record", count)
	}
}

// A list that is read for the server's resource version has no selectors: with these an API server may read all objects to find one. Where a
// right depends on the selectors, they are sent.
func TestSmallestListsHaveNoSelectors(t *testing.T) {
	for _, test := range []struct {
		labels, fields string
		forbidden      bool
		want           []string
	}{
		{"app=web", "status.phase=Running", false, []string{" "}},
		{"app=web", "status.phase=Running", true, []string{" ", "app=web status.phase=Running"}},
		{"", "metadata.name=a", true, []string{" metadata.name=a"}},
		{"", "metadata.name=a,status.phase=Running", false, []string{" metadata.name=a"}},
	} {
		t.Run(fmt.Sprint(test), func(t *testing.T) {
			var got []string
			front := before(t, things(t, "a"), func(w http.ResponseWriter, r *http.Request) bool {
				query := r.URL.Query()
				if selectors := query.Get("labelSelector") + " " + query.Get("fieldSelector"); query.Get("limit") == "1" {
					got = append(got, selectors)
				}
				if test.forbidden && len(got) == 1 {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusForbidden)
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
					return true
				}
				fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"7"}}`)
				return true
			})
			c := collection{client: clientFor(t, front), resource: sourcetest.Things, labelSelector: test.labels, fieldSelector: test.fields}
			p, err := c.newest(t.Context())
			if refused := test.forbidden && len(test.want) == 1; refused != apierrors.IsForbidden(err) || !refused && p.resourceVersion != "7" {
				t.Errorf("got %+v, %v", p, err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
