package source

import (
	"errors"
	"slices"
	"testing"
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
	for _, mode := range []Snapshot{SnapshotInitial, SnapshotNever} {
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
			l.expectMarks("p", "started 0 at 0")
			server.Write("changed", false)   // 15
			server.Write("deleted", true)    // 16
			server.Write("recreated", true)  // 17
			server.Write("recreated", false) // 18
			server.Write("new", false)       // 19
			l.watching(19)
			if n, err := l.source.RequestSnapshot("p", "", false); n != 1 || !errors.Is(err, ErrSnapshotPending) {
				t.Errorf("a second one: got %d, %v", n, err)
			}
			if s := l.source.Snapshots("p", ""); len(s) != 1 || s[0].Left != 1 || s[0].Sent != 1 || s[0].Done || s[0].Snapshot == "" {
				t.Errorf("meanwhile: got %+v", s)
			}
			l.setRoom(nil)
			l.expectSet("p", "u11/15/ADDED+s", "u11/15/MODIFIED", "u12/16/DELETED", "u13/17/DELETED", "u14/14/ADDED+s", "u18/18/ADDED", "u19/19/ADDED")
			l.expectMarks("p", "started 0 at 0", "completed 0 at 7 count 2")
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

// A restart abandons it, and begins another one with all objects.
func TestSnapshotOnDemandAcrossARestart(t *testing.T) {
	for _, killed := range []bool{false, true} {
		server, m := things(t, "a", "b", "c"), newMemory()
		l := live(t, server, m, []string{"p"}, nil)
		l.watching(13)
		l.snapshotsDone()
		l.setRoom(map[string]int{"p": 1})
		l.request()
		l.expectMarks("p", "started 0 at 0", "completed 0 at 3 count 3", "started 1 at 3")
		eventually(t, func() string { return map[bool]string{false: "not yet"}[len(l.sorted("p")) == 4] })
		l.capture()
		for _, k := range m.known[l.source.WatchIDs()[0]] {
			if k.Due != 0 {
				t.Errorf("a commit has %+v", k)
			}
		}
		if killed {
			l.crash()
		} else {
			l.stop()
		}
		first := l
		l = live(t, server, m, []string{"p"}, nil)
		l.expectMarks("p", "started 0 at 0", "completed 0 at 3 count 3")
		l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s")
		if slices.ContainsFunc(first.markTexts("p"), func(string) bool { return first.marks["p"][2].Snapshot == l.marks["p"][0].Snapshot }) {
			t.Error("it has the same id")
		}
	}
}
