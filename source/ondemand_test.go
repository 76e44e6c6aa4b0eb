package source

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// request asks for a snapshot of things, for the pipeline p.
func (l *life) request() {
	l.t.Helper()
	if n, err := l.source.RequestSnapshot("p", "v1/things", false); n != 1 || err != nil {
		l.t.Fatalf("got %d watches, %v", n, err)
	}
}

func (l *life) setRoom(room map[string]int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.room = room
}

// A snapshot on demand sends what exists, beside changes, which are sent as ever; and once more what changes before the snapshot
// has reached it.
func TestSnapshotOnDemand(t *testing.T) {
	for _, mode := range []delta.Snapshot{delta.SnapshotInitial, delta.SnapshotNever} {
		t.Run(string(mode), func(t *testing.T) {
			server, m := things(t, "changed", "deleted", "recreated", "same"), newMemory() // 11 to 14
			l := live(t, server, m, []string{"p", "other"}, func(o *Options, _ *life) { o.Snapshot = mode })
			l.watching(14)
			l.snapshotsDone()
			l.mu.Lock()
			clear(l.got)
			clear(l.marks)
			clear(l.marked)
			l.mu.Unlock()
			l.setRoom(map[string]int{"p": 0})
			l.request()
			l.begins("p")
			server.Write("changed", false)   // 15
			server.Write("deleted", true)    // 16
			server.Write("recreated", true)  // 17
			server.Write("recreated", false) // 18
			server.Write("new", false)       // 19
			l.watching(19)
			if n, err := l.source.RequestSnapshot("p", "", false); n != 1 || !errors.Is(err, ErrSnapshotPending) {
				t.Errorf("a second one: got %d, %v", n, err)
			}
			if s := l.source.Snapshots("p", ""); len(s) != 1 || s[0].Left != 1 || s[0].Sent != 1 || s[0].Done || s[0].Sequence == 0 {
				t.Errorf("meanwhile: got %+v", s)
			}
			l.setRoom(nil)
			l.expectSet("p", "u11/15/ADDED+s", "u11/15/MODIFIED", "u12/16/DELETED", "u13/17/DELETED", "u14/14/ADDED+s", "u18/18/ADDED", "u19/19/ADDED")
			l.expectMarks("p", "completed 0 at 7 count 2")
			l.expect("other", "u11/15/MODIFIED", "u12/16/DELETED", "u13/17/DELETED", "u18/18/ADDED", "u19/19/ADDED")
			l.expectMarks("other")
			if s := l.source.Snapshots("p", "v1/things"); len(s) != 1 || s[0].Left != 0 || s[0].Sent != 2 || !s[0].Done || !s[0].Complete {
				t.Errorf("at the end: got %+v", s)
			}
			if n, err := l.source.RequestSnapshot("q", "", false); n != 0 || err != nil {
				t.Errorf("a pipeline of another source: got %d, %v", n, err)
			}
		})
	}
}

// It ends with the delivery of its last mark, and is not complete if that is a dead letter.
func TestSnapshotEndsWithItsLastMark(t *testing.T) {
	for _, dies := range []bool{false, true} {
		server, m := things(t, "a"), newMemory()
		l := live(t, server, m, []string{"p"}, nil)
		l.watching(11)
		l.snapshotsDone()
		l.mu.Lock()
		l.waiting = 1
		l.mu.Unlock()
		l.request()
		l.expectMarks("p", "completed 0 at 1 count 1", "completed 1 at 2 count 1")
		if s := l.source.Snapshots("p", ""); len(s) != 1 || s[0].Done || s[0].Undelivered != 1 {
			t.Errorf("before the last mark is delivered: got %+v", s)
		}
		l.mu.Lock()
		l.waiting, l.died = 0, dies
		l.mu.Unlock()
		if s := l.source.Snapshots("p", ""); len(s) != 1 || !s[0].Done || s[0].Complete == dies {
			t.Errorf("it died %v: got %+v", dies, s)
		}
	}
}

// A restart abandons it, and begins another one with all objects.
func TestSnapshotOnDemandAcrossARestart(t *testing.T) {
	for _, killed := range []bool{false, true} {
		server, m := things(t, "a", "b", "c"), newMemory()
		l := live(t, server, m, []string{"p"}, nil)
		l.watching(13)
		l.snapshotsDone()
		l.setRoom(map[string]int{"p": 1})
		l.request()
		l.expectMarks("p", "completed 0 at 3 count 3")
		l.begins("p")
		eventually(t, func() string { return map[bool]string{false: "not yet"}[len(l.sorted("p")) == 4] })
		l.capture()
		if killed {
			l.crash()
		} else {
			l.stop()
		}
		first := l
		l = live(t, server, m, []string{"p"}, nil)
		l.expectMarks("p", "completed 0 at 3 count 3")
		l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s")
		if slices.ContainsFunc(first.markTexts("p"), func(string) bool {
			return first.source.all()[0].state.Snapshots["p"].Sequence == l.marks["p"][0].SnapshotSequence
		}) {
			t.Error("it has the same id")
		}
	}
}

// Also if it was killed before a commit that has the marks.
func TestSnapshotOnDemandKilledAtItsStart(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.snapshotsDone()
	l.capture()
	l.setRoom(map[string]int{"p": 0})
	l.request()
	l.expectMarks("p", "completed 0 at 2 count 2")
	l.begins("p")
	l.crash()
	l = live(t, server, m, []string{"p"}, nil)
	l.expectMarks("p", "completed 0 at 2 count 2")
}

// A snapshot that is requested when the last one was completed, and its goroutine has not ended yet, is noticed at that end.
func TestSnapshotRightBehindAnother(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.stop() // nothing but the test handles what follows
	w := l.source.all()[0]
	l.request()
	w.takeRequests()
	if !w.claim(0) {
		t.Fatal("no snapshot to begin")
	}
	w.mu.Lock()
	l.Update(func() { w.state.dropSnapshot("p") }) // it is completed
	w.mu.Unlock()
	l.request()
	w.takeRequests()
	<-w.wake
	if w.claim(0) {
		t.Fatal("two goroutines send snapshots to one pipeline")
	}
	w.unclaim(0)
	select {
	case <-w.wake:
	default:
		t.Fatal("nothing begins the next one")
	}
	if !w.claim(0) {
		t.Error("the next one cannot begin")
	}
}

// One whose resource goes ends, and is not complete. One that an edit interrupts is sent all the same, also where others are not.
func TestSnapshotOnDemandIsInterrupted(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	never := func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever }
	l := live(t, server, m, []string{"p"}, never)
	l.watching(12)
	l.snapshotsDone()
	l.setRoom(map[string]int{"p": 1})
	l.request()
	l.begins("p")
	l.stop()
	l = live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		never(o, l)
		o.Namespaces = delta.Namespaces{Include: []string{"n*"}}
	})
	l.expectSet("p", "gap 12-12", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.snapshotsDone()
	l.setRoom(map[string]int{"p": 1})
	l.request()
	eventually(t, func() string { return map[bool]string{false: "not yet"}[len(l.sorted("p")) == 4] })
	server.SetMissing(true)
	eventually(t, func() string {
		if s := l.source.Snapshots("p", ""); len(s) != 1 || !s[0].Done || s[0].Complete || s[0].Sent != 1 {
			return fmt.Sprintf("got %+v", s)
		}
		return ""
	})
}

// What does not exist, or exists no more, is left out of a snapshot of all resources, and named.
func TestSnapshotLeavesOutWhatDoesNotExist(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
		o.Resources = []schema.GroupVersionResource{sourcetest.Things, {Group: "example.com", Version: "v1", Resource: "others"}}
	})
	l.watching(11)
	l.snapshotsDone()
	missing := func(n int) {
		t.Helper()
		eventually(t, func() string {
			return map[bool]string{false: "it is not found to be missing"}[l.source.Status()[n].State == StateMissing]
		})
	}
	missing(1)
	if _, err := l.source.RequestSnapshot("p", "example.com/v1/others", false); !errors.Is(err, ErrMissing) {
		t.Errorf("a snapshot of it: got %v", err)
	}
	request := func(want func(SnapshotStatus) bool) {
		t.Helper()
		if n, err := l.source.RequestSnapshot("p", "", false); n != 2 || err != nil {
			t.Fatalf("got %d, %v", n, err)
		}
		eventually(t, func() string {
			if s := l.source.Snapshots("p", ""); len(s) != 2 || !want(s[0]) || !s[1].Missing || !s[1].Done || !s[1].Complete {
				return fmt.Sprintf("got %+v", s)
			}
			return ""
		})
	}
	request(func(s SnapshotStatus) bool { return s.Done && s.Complete && !s.Missing && s.Sent == 1 })
	l.setRoom(map[string]int{"p": 0})
	request(func(s SnapshotStatus) bool { return !s.Done })
	server.SetMissing(true)
	eventually(t, func() string {
		if s := l.source.Snapshots("p", ""); len(s) != 2 || !s[0].Done || s[0].Complete || s[0].Missing {
			return fmt.Sprintf("interrupted: got %+v", s)
		}
		return ""
	})
	missing(0)
	request(func(s SnapshotStatus) bool { return s.Done && s.Complete && s.Missing })
}

// A snapshot of what is gone is refused, also where a source sends none of its own. One that was requested just before waits until the
// resource is back, and its objects were read.
func TestSnapshotOfWhatIsGone(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever })
	l.watching(11)
	l.snapshotsDone()
	server.SetMissing(true)
	l.expect("p", "gap 11-", "u11/11/DELETED+i")
	eventually(t, func() string {
		_, err := l.source.RequestSnapshot("p", "v1/things", true)
		return map[bool]string{false: fmt.Sprint("got ", err)}[errors.Is(err, ErrMissing)]
	})
	w := l.source.all()[0]
	w.request(0)
	w.takeRequests()
	if !w.claim(0) {
		t.Fatal("it is sent already")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.runSnapshot(ctx, 0) })
	defer running.Wait()
	defer cancel()
	server.Write("b", false)
	server.Write("c", false)
	server.SetMissing(false)
	eventually(t, func() string { return map[bool]string{false: "no snapshot"}[len(l.markTexts("p")) == 1] })
}

// A request does not wait for a watch that a full backlog blocks, nor does the status. It is kept, and the snapshot begins when the
// watch moves, or after a restart; if the resource goes first, it ends.
func TestSnapshotRequestedOfABlockedWatch(t *testing.T) {
	for _, next := range []string{"moves", "restarts", "goes"} {
		t.Run(next, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory()
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(12)
			l.snapshotsDone()
			l.mu.Lock()
			l.after, l.released = l.handed, make(chan struct{})
			l.mu.Unlock()
			server.Write("a", false) // 13
			eventually(t, func() string {
				return map[bool]string{false: "not blocked"}[l.source.Status()[0].Blocked]
			})
			l.request()
			if _, err := l.source.RequestSnapshot("p", "", true); !errors.Is(err, ErrSnapshotPending) {
				t.Errorf("a second one: got %v", err)
			}
			if s := l.source.Snapshots("p", ""); len(s) != 1 || s[0].Done || s[0].Sequence > 0 {
				t.Errorf("meanwhile: got %+v", s)
			}
			switch next {
			case "moves":
				close(l.released)
				l.expectMarks("p", "completed 0 at 2 count 2", "completed 1 at 5 count 2")
			case "restarts":
				l.capture()
				l.crash()
				l = live(t, server, m, []string{"p"}, nil)
				eventually(t, func() string { return map[bool]string{false: "no snapshot"}[len(l.markTexts("p")) == 1] })
			case "goes":
				server.SetMissing(true)
				close(l.released)
				eventually(t, func() string {
					if s := l.source.Snapshots("p", ""); len(s) != 1 || !s[0].Done {
						return fmt.Sprintf("got %+v", s)
					}
					return ""
				})
			}
		})
	}
}

// A pipeline is new, and one of its resources does not exist: a snapshot of the others is taken.
func TestSnapshotOfANewPipelineBesideWhatIsMissing(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	both := func(o *Options, _ *life) {
		o.Resources = []schema.GroupVersionResource{sourcetest.Things, {Group: "example.com", Version: "v1", Resource: "others"}}
	}
	missing := func(l *life) {
		eventually(t, func() string {
			return map[bool]string{false: "it is not found to be missing"}[l.source.Status()[1].State == StateMissing]
		})
	}
	l := live(t, server, m, []string{"q"}, both)
	l.watching(11)
	missing(l)
	l.stop()
	l = live(t, server, m, []string{"q", "p"}, both)
	l.watching(11)
	missing(l)
	l.expect("p", "u11/11/ADDED+s")
	eventually(t, func() string {
		if len(l.markTexts("p")) < 1 {
			return "not completed"
		}
		return ""
	})
	if n, err := l.source.RequestSnapshot("p", "", false); n != 2 || err != nil {
		t.Errorf("got %d, %v", n, err)
	}
	if _, err := l.source.RequestSnapshot("p", "example.com/v1/others", true); !errors.Is(err, ErrMissing) {
		t.Errorf("got %v", err)
	}
}

// A pipeline that waits for a snapshot on demand gets what an edit selects more; another one of the same source, which sends no snapshots, gets
// nothing of it.
func TestSnapshotOnDemandAndWiderSelection(t *testing.T) {
	server, m := things(t, "shop/a", "team/b"), newMemory() // 11, 12
	of := func(globs ...string) func(*Options, *life) {
		return func(o *Options, _ *life) {
			o.Snapshot, o.Namespaces = delta.SnapshotNever, delta.Namespaces{Include: globs}
		}
	}
	l := live(t, server, m, []string{"p", "q"}, of("shop*"))
	l.watching(12)
	l.setRoom(map[string]int{"p": 0})
	l.request()
	l.begins("p")
	l.stop()
	l = live(t, server, m, []string{"p", "q"}, of("shop*", "team*"))
	l.watching(12)
	server.Write("team/b", false) // 13
	l.expect("q", "gap 12-12", "u12/13/MODIFIED")
	eventually(t, func() string {
		if got := l.sorted("p"); !slices.Contains(got, "u11/11/ADDED+s") || len(got) < 3 {
			return fmt.Sprint(got)
		}
		return ""
	})
}
