package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// markTexts describes the marks of a pipeline: the phase, what it says, and how many records were before it. Ids are numbered.
func (l *life) markTexts(name string) (texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := []uint64{}
	for n, m := range l.marks[name] {
		if !slices.Contains(ids, m.SnapshotSequence) {
			ids = append(ids, m.SnapshotSequence)
		}
		text := fmt.Sprintf("completed %d at %d count %d", slices.Index(ids, m.SnapshotSequence), l.marked[name][n], m.Count)
		if m.Incomplete {
			text += " incomplete"
		}
		texts = append(texts, text)
	}
	return texts
}

// begins waits until a snapshot for a pipeline has begun that is not complete.
func (l *life) begins(name string) {
	l.t.Helper()
	eventually(l.t, func() string {
		for _, w := range l.source.all() {
			w.mu.Lock()
			begun := w.state.Snapshots[name].Begun
			w.mu.Unlock()
			if begun {
				return ""
			}
		}
		return "no snapshot for " + name
	})
}

func (l *life) expectMarks(name string, want ...string) {
	l.t.Helper()
	eventually(l.t, func() string {
		if got := l.markTexts(name); !slices.Equal(got, want) {
			return fmt.Sprintf("%s got  %q\nwant %q", name, got, want)
		}
		return ""
	})
}

// A mark ends the first state, and what a pipeline that is new gets, and nothing else.
func TestMarks(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.expectMarks("old", "completed 0 at 2 count 2")
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expectMarks("new", "completed 0 at 2 count 2")
	l.watching(12)
	l.expectMarks("old")
	l.stop()
	server.Write("a", true)
	server.Write("b", true) // 14
	l = live(t, server, m, []string{"old"}, nil)
	l.watching(14)
	l.stop()
	// One that comes back gets the mark of an empty snapshot: nothing exists any more.
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.died = true })
	l.expectMarks("new", "completed 0 at 0 count 0 incomplete")
	l.watching(14)
	l.expectMarks("old")
	l.expect("new")
}

// A snapshot waits for room in its pipeline. The watch goes on meanwhile.
func TestSnapshotWithoutRoomHoldsNothingUp(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) {
		l.room, l.waits = map[string]int{"new": -1}, make(chan string, 1)
	})
	select {
	case <-l.waits:
	case <-time.After(10 * time.Second):
		t.Fatal("the snapshot does not wait for room")
	}
	server.Write("a", false) // 12
	l.expect("old", "u11/12/MODIFIED")
	l.expectMarks("new")
	l.mu.Lock()
	delete(l.room, "new")
	l.mu.Unlock()
	l.expectMarks("new", "completed 0 at 2 count 1")
}

// A snapshot that goes on after a restart is the same one: its mark names the sequence that its first records name.
func TestMarksAcrossRestarts(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(13)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 2} })
	l.expect("new", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.begins("new")
	l.stop()
	first := l.source.all()[0].state.Snapshots["new"].Sequence
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expectMarks("new", "completed 0 at 1 count 3")
	if after := l.marks["new"][0].SnapshotSequence; first != after {
		t.Errorf("began as %d, and ended as %d", first, after)
	}
	l.expect("new", "u13/13/ADDED+s")
}

// Edited filters make it another snapshot: what passed the former ones is no part of it.
func TestFiltersEditedDuringASnapshot(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	filters := func(of string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Filters = []string{"same", of}
			if of == "first" {
				l.room = map[string]int{"new": 2}
			}
		}
	}
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(13)
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, filters("first"))
	l.expect("new", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, filters("second"))
	l.expectMarks("new", "completed 0 at 3 count 3")
}

// After a kill in the first state it is not known what was sent: another snapshot begins, with all objects.
func TestMarksAfterAKillInTheFirstState(t *testing.T) {
	for _, lost := range []bool{false, true} {
		server, m := things(t, "a", "b", "c"), newMemory()
		l := live(t, server, m, []string{"p"}, func(o *Options, l *life) { o.HistoryLost, l.after = lost, 2 })
		eventually(t, func() string {
			return map[bool]string{false: "not yet"}[len(l.sorted("p")) == 2+len(l.gapRecords())]
		})
		l.capture()
		l.crash()
		before := l.source.all()[0].state.Snapshots["p"].Sequence
		l = live(t, server, m, []string{"p"}, nil)
		l.expectMarks("p", "completed 0 at 4 count 3")
		l.expectSet("p", "gap -13", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s")
		if after := l.marks["p"][0].SnapshotSequence; before >= after {
			t.Errorf("%v: the same snapshot began twice", lost)
		}
	}
}

// A pipeline that is new and takes nothing of its snapshot stops the watch for no other one.
func TestSlowSnapshotStopsNoOther(t *testing.T) {
	server, m := things(t, "a", "b", "c", "d", "e"), newMemory() // 11 to 15
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(15)
	l.stop()
	l = live(t, server, m, []string{"old", "slow", "quick"}, func(_ *Options, l *life) { l.room = map[string]int{"slow": 1} })
	l.expectSet("quick", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED+s", "u15/15/ADDED+s")
	l.expect("slow", "u11/11/ADDED+s")
	server.Write("f", false) // 16
	server.Write("e", true)  // 17
	l.expect("old", "u16/16/ADDED", "u15/17/DELETED")
	l.expectSet("slow", "u11/11/ADDED+s", "u15/17/DELETED", "u16/16/ADDED")
	l.stop()

	// Its progress is kept, and nothing is sent to the others again.
	l = live(t, server, m, []string{"old", "slow", "quick"}, func(_ *Options, l *life) { l.room = map[string]int{"slow": 1} })
	l.expect("slow", "u12/12/ADDED+s")
	server.Write("c", false) // 18
	l.expect("old", "u13/18/MODIFIED")
	l.expectSet("slow", "u12/12/ADDED+s", "u13/18/ADDED+s", "u13/18/MODIFIED")
	l.stop()
	server.Write("g", false) // 19, while away
	l = live(t, server, m, []string{"old", "slow", "quick"}, nil)
	l.expectSet("slow", "u14/14/ADDED+s", "u19/19/ADDED")
	l.snapshotsDone()
	l.expect("old", "u19/19/ADDED")
	l.expect("quick", "u19/19/ADDED")
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
}

// A killed run may have sent objects that no commit names. A snapshot after it is complete only when the watch has repeated them, and
// a transport that has seen them takes them again.
func TestSnapshotAfterAKillHasWhatThatRunSent(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11 and 12
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.snapshotsDone()
	l.capture()
	server.Write("new", false) // 13, sent and not committed
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED")
	l.crash()

	server.SetSilent(true)
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotAlways })
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.begins("p")
	server.SetSilent(false)
	l.expectMarks("p", "completed 0 at 3 count 2")
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED")
	if repeated := l.delta("u13/13/ADDED"); repeated.SnapshotSequence == 0 {
		t.Error("the record does not name the snapshot: a transport that has seen it drops it")
	}
	server.Write("new", false) // 14
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED", "u13/14/MODIFIED")
	if next := l.delta("u13/14/MODIFIED"); next.SnapshotSequence != 0 {
		t.Errorf("a change behind the snapshot names %d", next.SnapshotSequence)
	}
}

// What a watch does not select is never known.
func TestSnapshotAfterAKillLeavesOutWhatIsNotSelected(t *testing.T) {
	server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
	l := live(t, server, m, []string{"p"}, selecting("shop*"))
	l.watching(12)
	l.snapshotsDone()
	l.capture()
	server.Write("team/b", false) // 13: the position is behind it
	l.crash()
	server.SetSilent(true)
	l = live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		selecting("shop*")(o, l)
		o.Snapshot = delta.SnapshotAlways
	})
	l.expectMarks("p", "completed 0 at 1 count 1")
}

// A change that comes again after a kill sends its object in no snapshot: the killed run may have sent later changes.
func TestRepeatedChangesAreInNoSnapshot(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.capture()
	server.Write("a", false) // 12
	server.Write("a", false) // 13: sent, and not committed
	l.watching(13)
	l.crash()
	begun := make(chan struct{})
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if isWatch(r) {
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			select {
			case <-begun:
			case <-r.Context().Done():
			}
		}
		return false
	})
	l = live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotAlways })
	l.begins("p")
	close(begun)
	l.snapshotsDone()
	l.expectSet("p", "u11/12/MODIFIED", "u11/13/ADDED+s", "u11/13/MODIFIED")
}

// What changes while a snapshot runs comes with its change if the snapshot has not reached it.
func TestChangesDuringASnapshot(t *testing.T) {
	server, m := things(t, "changed", "deleted", "recreated", "same"), newMemory() // 11 to 14
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(14)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 0} })
	l.watching(14)
	l.begins("new")
	for _, name := range []string{"changed", "deleted", "recreated"} {
		server.Write(name, name != "changed") // 15 to 17
	}
	server.Write("recreated", false) // 18
	server.Write("new", false)       // 19
	l.watching(19)
	l.mu.Lock()
	l.room = nil
	l.mu.Unlock()
	l.snapshotsDone()
	got := l.sorted("new")
	want := []string{"u11/15/ADDED+s", "u11/15/MODIFIED", "u12/16/DELETED", "u13/17/DELETED", "u14/14/ADDED+s", "u18/18/ADDED", "u19/19/ADDED"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// A list that takes longer than the server remembers goes on with its next page.
func TestSnapshotContinuesARefusedList(t *testing.T) {
	var names []string
	for n := range 9 {
		names = append(names, fmt.Sprint("o", n))
	}
	server, m := things(t, names...), newMemory() // 11 to 19
	server.Inconsistent = true
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(19)
	l.snapshotsDone()
	eventually(t, func() string { // three pages, and a look at the resource version before them and before the watch
		if n := server.Pages(); n != 5 {
			return fmt.Sprintf("got %d requests", n)
		}
		return ""
	})
	l.stop()
	pages := server.Pages()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 4} })
	eventually(t, func() string {
		if got := l.sorted("new"); len(got) != 4 {
			return fmt.Sprint(got)
		}
		return ""
	})
	server.Write("tick", false) // 20
	server.CompactStates()
	l.mu.Lock()
	l.room = nil
	l.mu.Unlock()
	l.snapshotsDone()
	got := slices.DeleteFunc(l.sorted("new"), func(id string) bool { return !strings.HasSuffix(id, "+s") })
	if len(got) != 9 || len(slices.Compact(got)) != 9 {
		t.Errorf("got %v", got)
	}
	// One list compares the position; nine objects and the tick are four pages, and one request is refused.
	// And one has the version of the snapshot.
	if n := server.Pages() - pages; n > 7 {
		t.Errorf("got %d requests", n)
	}
}

// A record that died before a restart leaves a snapshot incomplete that goes on behind it.
func TestDeadRecordBeforeARestart(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(13)
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 2} })
	l.expect("new", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.mu.Lock()
	l.died = true
	l.mu.Unlock()
	l.stop()
	for range 2 { // and through a run in which nothing happens
		l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 0} })
		l.watching(13)
		l.stop()
	}
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expectMarks("new", "completed 0 at 1 count 3 incomplete")
}

func selecting(globs ...string) func(*Options, *life) {
	return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: globs} }
}

// The resource is gone while a source without snapshots watches, and is back when it sends some.
func TestMarksBehindASourceWithoutSnapshots(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever })
	l.watching(11)
	server.SetMissing(true)
	l.reaches(StateMissing)
	l.stop()
	server.SetMissing(false)
	server.Write("b", false)
	server.Write("c", false)
	l = live(t, server, m, []string{"p"}, nil)
	l.snapshotsDone()
	l.watching(server.Version())
	l.expectMarks("p", "completed 0 at 2 count 2")
}
