package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// markTexts describes the marks of a pipeline: the phase, what it says, and how many records were before it. Ids are numbered.
func (l *life) markTexts(name string) (texts []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ids := []string{}
	for n, m := range l.marks[name] {
		if !slices.Contains(ids, m.Snapshot) {
			ids = append(ids, m.Snapshot)
		}
		text := fmt.Sprintf("%s %d at %d", m.Phase, slices.Index(ids, m.Snapshot), l.marked[name][n])
		if m.Phase == delta.Completed {
			text += fmt.Sprint(" count ", m.Count)
		}
		if m.Incomplete {
			text += " incomplete"
		}
		texts = append(texts, text)
	}
	return texts
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

// Marks stand around the first state, around what a pipeline that is new gets, and around nothing else.
func TestMarks(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.expectMarks("old", "started 0 at 0", "completed 0 at 2 count 2")
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expectMarks("new", "started 0 at 0", "completed 0 at 2 count 2")
	l.watching(12)
	l.expectMarks("old")
	l.stop()
	server.Write("a", true)
	server.Write("b", true) // 14
	l = live(t, server, m, []string{"old"}, nil)
	l.watching(14)
	l.stop()
	// One that comes back gets the marks of an empty snapshot: nothing exists any more.
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.died = true })
	l.expectMarks("new", "started 0 at 0", "completed 0 at 0 count 0 incomplete")
	l.watching(14)
	l.expectMarks("old")
	l.expect("new")
}

// The first mark of a snapshot waits for room in its pipeline, as its objects do. The watch goes on meanwhile.
func TestFirstMarkWithoutRoomHoldsNothingUp(t *testing.T) {
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
		t.Fatal("the mark does not wait for room")
	}
	server.Write("a", false) // 12
	l.expect("old", "u11/12/MODIFIED")
	l.expectMarks("new")
	l.mu.Lock()
	delete(l.room, "new")
	l.mu.Unlock()
	l.expectMarks("new", "started 0 at 1", "completed 0 at 2 count 1")
}

// A snapshot that goes on after a restart is the same one: only so do its marks enclose all of it.
func TestMarksAcrossRestarts(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(13)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 2} })
	l.expect("new", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.expectMarks("new", "started 0 at 0")
	l.capture()
	l.crash()
	first := l
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expectMarks("new", "completed 0 at 1 count 3")
	if before, after := first.marks["new"][0].Snapshot, l.marks["new"][0].Snapshot; before != after {
		t.Errorf("began as %s, and ended as %s", before, after)
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
	l.expectMarks("new", "started 0 at 0", "completed 0 at 3 count 3")
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
		first := l
		l = live(t, server, m, []string{"p"}, nil)
		l.expectMarks("p", "started 0 at 1", "completed 0 at 4 count 3")
		l.expectSet("p", "gap -13", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s")
		if before, after := first.marks["p"][0].Snapshot, l.marks["p"][0].Snapshot; before == after {
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
	l.capture()
	l.crash()

	// Its progress is kept, and nothing is sent to the others again.
	l = live(t, server, m, []string{"old", "slow", "quick"}, func(_ *Options, l *life) { l.room = map[string]int{"slow": 1} })
	l.expect("slow", "u12/12/ADDED+s")
	server.Write("c", false) // 18
	l.expect("old", "u13/18/MODIFIED")
	l.expectSet("slow", "u12/12/ADDED+s", "u13/18/ADDED+s", "u13/18/MODIFIED")
	l.capture()
	l.crash()
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
	pages := server.Pages()
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotAlways })
	l.expectMarks("p", "started 0 at 0")
	eventually(t, func() string { return map[bool]string{false: "the list is not read again"}[server.Pages() > pages+3] })
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.expectMarks("p", "started 0 at 0")
	server.SetSilent(false)
	l.expectMarks("p", "started 0 at 0", "completed 0 at 3 count 2")
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED")
	if repeated := l.delta("u13/13/ADDED"); repeated.SnapshotID == "" {
		t.Error("a transport drops what it has seen before the first mark")
	}
	server.Write("new", false) // 14
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED", "u13/14/MODIFIED")
	if next := l.delta("u13/14/MODIFIED"); next.SnapshotID != "" {
		t.Errorf("got the id %s in a change that is no repetition", next.SnapshotID)
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
	l.expectMarks("p", "started 0 at 0", "completed 0 at 1 count 1")
}

// What changes while a snapshot runs comes with its change if the snapshot has not reached it.
func TestChangesDuringASnapshot(t *testing.T) {
	server, m := things(t, "changed", "deleted", "recreated", "same"), newMemory() // 11 to 14
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(14)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 0} })
	l.watching(14)
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
	if n := server.Pages() - pages; n > 6 {
		t.Errorf("got %d requests", n)
	}
}

// While changes may be repeated, those of objects that are due are left to the next reading of the list. One that is interrupted
// meanwhile goes on, and is followed by another from the beginning.
func TestInterruptedListWhileChangesRepeat(t *testing.T) {
	server, m := things(t, "a", "b", "c", "d", "e"), newMemory() // 11 to 15
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(15)
	l.capture()
	l.crash()
	server.Write("a", false) // 16
	server.Write("e", false) // 17
	listed, caughtUp := make(chan struct{}), make(chan struct{})
	var refused atomic.Bool
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		switch query := r.URL.Query(); {
		case isWatch(r): // opened at once, and silent until the first page was read
			w.Header().Set("Content-Type", "application/json")
			w.(http.Flusher).Flush()
			awaitOr(r, listed)
		case strings.HasSuffix(r.URL.Path, "/things") && query.Get("continue") != "" && !refused.Swap(true):
			close(listed)
			awaitOr(r, caughtUp)
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	l = live(t, front, m, []string{"old", "new"}, nil)
	l.watching(17)
	close(caughtUp)
	l.expectMarks("new", "started 0 at 0", "completed 0 at 7 count 5")
	l.expectSet("new", "u11/16/ADDED+s", "u11/16/MODIFIED", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED+s", "u15/17/ADDED+s", "u15/17/MODIFIED")
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
	l.capture()
	l.mu.Lock()
	l.died = true
	l.mu.Unlock()
	l.capture()
	l.crash()
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

// after reports whether a delta comes after one with a sequence: of two with the same the DELETED is the later.
func after(d *delta.Delta, last uint64) bool {
	return sequence(d) > last || sequence(d) == last && d.Type == delta.Deleted
}

// What a killed run sent of a snapshot and does not pass any more leaves the pipeline, also if that run had sent the last mark: the next one
// repeats that under the same id.
func TestLeavesInASnapshotAfterAKill(t *testing.T) {
	for _, deleted := range []bool{false, true} {
		for room, sent := range map[int][]string{1: {"u11/11/ADDED+s"}, 2: {"u11/11/ADDED+s", "u12/12/ADDED+s"}} {
			t.Run(fmt.Sprint(deleted, sent), func(t *testing.T) {
				server, m := things(t, "a", "b"), newMemory() // 11, 12
				l := live(t, server, m, []string{"old"}, nil)
				l.watching(12)
				l.stop()
				filter := func(_ *Options, l *life) {
					l.onLeave = true
					l.passes = func(pipeline string, o *delta.Object) bool {
						return pipeline == "old" || slices.Contains([]string{"11", "12"}, o.ResourceVersion())
					}
				}
				l = live(t, server, m, []string{"old", "new"}, func(o *Options, l *life) {
					filter(o, l)
					l.room = map[string]int{"new": 0}
				})
				l.expectMarks("new", "started 0 at 0")
				l.capture() // the mark and what is due
				l.setRoom(map[string]int{"new": room})
				l.expect("new", sent...)
				if room == 2 {
					l.snapshotsDone()
				}
				l.crash()
				server.Write("a", deleted) // 13 does not pass
				l = live(t, server, m, []string{"old", "new"}, filter)
				l.expectSet("new", "u11/13/DELETED", "u12/12/ADDED+s")
				l.expectMarks("new", "completed 0 at 2 count 1")
			})
		}
	}
}

// What never passed does not leave a pipeline: not in a snapshot that begins anew after a kill, nor in one that goes on after a stop.
func TestNothingLeavesASnapshotThatNeverPassed(t *testing.T) {
	for name, mode := range map[string]delta.Snapshot{"on demand": delta.SnapshotInitial, "always": delta.SnapshotAlways, "new": delta.SnapshotInitial} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory() // 11, 12
			pipelines := []string{"p"}
			start := func(room map[string]int) *life {
				return live(t, server, m, pipelines, func(o *Options, l *life) {
					o.Snapshot, l.onLeave, l.room = mode, true, room
					l.passes = func(_ string, o *delta.Object) bool { return o.Name() == "a" }
				})
			}
			l := start(nil)
			l.watching(12)
			l.snapshotsDone()
			none := map[string]int{"p": 0, "new": 0}
			switch name {
			case "on demand":
				l.setRoom(none)
				l.request()
				l.expectMarks("p", "started 0 at 0", "completed 0 at 1 count 1", "started 1 at 1")
			case "new":
				l.stop()
				pipelines = append(pipelines, "new")
				l = start(none)
				l.expectMarks("new", "started 0 at 0")
			}
			if name == "new" {
				l.stop()
			} else {
				l.capture()
				l.crash()
			}
			l = start(none)
			last := pipelines[len(pipelines)-1]
			marks := []string{"started 0 at 0", "completed 0 at 1 count 1"}
			if name == "new" {
				marks = marks[1:]
			} else {
				l.expectMarks(last, marks[0])
			}
			server.Write("b", false) // 13
			l.watching(13)
			l.setRoom(nil)
			l.expectMarks(last, marks...)
			l.expect(last, "u11/11/ADDED+s")
		})
	}
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
	l.expectMarks("p", "started 0 at 0", "completed 0 at 2 count 2")
}

// A pipeline that a killed run perhaps sent an object to in a snapshot may have kept back the version that is retained for others.
func TestPreviousVersionBehindAKilledSnapshot(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	without := func(o *Options, l *life) {
		retaining(o, l)
		l.room = map[string]int{"new": 0}
	}
	l := live(t, server, m, []string{"old"}, retaining)
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, without)
	eventually(t, func() string {
		if got := l.markTexts("new"); len(got) != 1 {
			return fmt.Sprint(got)
		}
		return ""
	})
	l.capture()
	l.setRoom(map[string]int{"new": 1})
	eventually(t, func() string {
		if len(l.sorted("new")) == 0 {
			return "nothing is sent"
		}
		return ""
	})
	l.crash()
	l = live(t, server, m, []string{"old", "new"}, without)
	l.watching(12)
	server.Write("a", false) // 13
	l.expect("old", "u11/13/MODIFIED")
	l.setRoom(nil)
	l.snapshotsDone()
	server.Write("a", false) // 14
	l.expect("old", "u11/13/MODIFIED", "u11/14/MODIFIED<13")
}
