package source

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// expiring returns a server with ten things, and their DELETEDs, which all have version 21.
func expiring(t *testing.T) (server *sourcetest.Server, names, deleted []string) {
	t.Helper()
	for n := range 10 {
		names = append(names, fmt.Sprint("t", n))
		deleted = append(deleted, fmt.Sprintf("u%d/21/DELETED", 11+n))
	}
	return things(t, names...), names, deleted
}

// etcd deletes the Events of a lease in one transaction, and so with one resource version. A watch that is cut between two of these
// DELETEDs gets the others when it is opened again.
func TestCutAmongDeletionsOfOneVersion(t *testing.T) {
	for _, cut := range []int{1, 4, 9} {
		t.Run(fmt.Sprint(cut), func(t *testing.T) {
			server, names, deleted := expiring(t)
			r := &recorder{}
			source := run(t, server, r, func(o *Options) { o.Snapshot = delta.SnapshotNever })
			eventually(t, func() string {
				if s := source.Status()[0]; s.Known != len(names) {
					return fmt.Sprintf("%+v", s)
				}
				return ""
			})
			server.CutBehind(cut)
			server.Expire(names...)
			r.expect(t, deleted...)
			if s := source.Status()[0]; s.Known != 0 || s.Gaps > 0 {
				t.Errorf("got %+v", s)
			}
		})
	}
}

// The same for the position of a commit: the program is killed, or stopped, between two of them.
func TestRestartAmongDeletionsOfOneVersion(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			server, names, deleted := expiring(t)
			m := newMemory()
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(20)
			l.snapshotsDone()
			l.stop()
			l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 4 })
			server.Expire(names...)
			l.expect("p", deleted[:4]...)
			if l.capture(); killed {
				l.crash()
			} else {
				l.stop()
			}
			l = live(t, server, m, []string{"p"}, nil)
			l.expect("p", deleted[4:]...)
			l.watching(21)
			l.stop()
			if known := m.known[l.source.WatchIDs()[0]]; len(known) > 0 || len(l.gapRecords()) > 0 {
				t.Errorf("got %v, gaps %v", known, l.gapRecords())
			}
		})
	}
}

// What a watch repeats, as it begins one version earlier, is known, and nothing: no record, and no end of a watch either that is to go on
// until an event moves the position (because the state at the position is refused).
func TestRepeatedEventsAreNothing(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(12)
	for range 3 {
		server.Write("a", false) // 13, 14, 15
		server.Cut(false)
	}
	server.Write("b", true) // 16
	l.watching(16)
	server.Cut(false)
	server.Write("c", false) // 17
	server.Cut(false)
	server.Write("c", false) // 18
	l.watching(18)
	l.stop()
	want := []string{"u11/13/MODIFIED", "u11/14/MODIFIED", "u11/15/MODIFIED", "u12/16/DELETED", "u17/17/ADDED", "u17/18/MODIFIED"}
	if got := l.got["old"][2:]; !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	server.CompactStates()
	server.Write("a", false) // 19
	server.Write("c", false) // 20
	server.Expire("a", "c")  // 21
	server.Write("d", false) // 22
	server.CompactStates()   // so that the state that "new" lacks cannot be read at 18 to 21
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expect("old", "u11/19/MODIFIED", "u17/20/MODIFIED", "u11/21/DELETED", "u17/21/DELETED", "u22/22/ADDED")
	if len(l.gapRecords()) > 0 {
		t.Errorf("got gaps %+v", l.gapRecords())
	}
}

// Behind a list, and behind a bookmark of a later version than the last event, a watch begins at that version: an API server
// refuses what is before its own first list. Behind an event it begins one version earlier; but never at 0, which is any.
func TestVersionsThatWatchesBeginAt(t *testing.T) {
	server := things(t, "a")
	for range 20 {
		server.Write("gadgets:g", false) // up to 31
	}
	begins, frames := make(chan string), make(chan string)
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "/things") && !isWatch(r) && r.URL.Query().Get("limit") != "1" {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"11"},"items":[]}`)
			return true
		}
		if !isWatch(r) {
			return false
		}
		from := r.URL.Query().Get("resourceVersion")
		select {
		case begins <- from:
		case <-r.Context().Done():
		}
		w.Header().Set("Content-Type", "application/json")
		select {
		case text := <-frames:
			fmt.Fprintln(w, text)
		case <-r.Context().Done():
		}
		return true
	})
	run(t, front, &recorder{}, nil)
	frame := func(kind, version string) string {
		return fmt.Sprintf(`{"type":%q,"object":{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a","namespace":"ns","uid":"u11","resourceVersion":%q}}}`, kind, version)
	}
	for _, watch := range []struct {
		from   string
		frames []string
	}{
		{"11", []string{frame("MODIFIED", "15")}},
		{"14", []string{frame("MODIFIED", "15"), frame("MODIFIED", "16")}},
		{"15", []string{frame("BOOKMARK", "16")}},
		{"15", []string{frame("BOOKMARK", "18")}},
		{"18", []string{frame("MODIFIED", "18")}}, // the bookmark was sent among several of this version
		{"17", []string{frame("MODIFIED", "20"), frame("BOOKMARK", "x1")}},
		{"20", []string{frame("MODIFIED", "x2")}},
		{"x1", []string{frame("MODIFIED", "x2")}},
		{"x1", []string{frame("MODIFIED", "x3"), frame("DELETED", "x4")}},
		{"x3", nil},
	} {
		select {
		case from := <-begins:
			if from != watch.from {
				t.Errorf("a watch begins at %q, want %q", from, watch.from)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no watch, want one at %q", watch.from)
		}
		frames <- strings.Join(watch.frames, "\n")
	}
}

// An API server that has just started refuses the version before the last event, and has that of the event: the history goes on there.
// What else had this version is found by a check. There is a gap record only if something differs.
func TestOnlyTheVersionBeforeTheLastEventIsRefused(t *testing.T) {
	for name, differs := range map[string]bool{"all of them came": false, "some of them did not": true} {
		for refusal, inStream := range map[string]bool{"as HTTP answer": false, "inside the stream": true} {
			t.Run(name+", "+refusal, func(t *testing.T) {
				server, names, _ := expiring(t)
				server.InStream = inStream
				m := newMemory()
				l := live(t, server, m, []string{"p"}, nil)
				l.watching(20)
				l.snapshotsDone()
				if differs {
					l.stop()
					l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 8 })
				}
				server.Expire(names[:9]...) // 21
				if differs {
					l.expect("p", "u11/21/DELETED", "u12/21/DELETED", "u13/21/DELETED", "u14/21/DELETED", "u15/21/DELETED", "u16/21/DELETED", "u17/21/DELETED", "u18/21/DELETED")
				} else {
					eventually(t, func() string {
						if s := l.source.Status()[0]; s.Known != 1 {
							return fmt.Sprintf("got %+v", s)
						}
						return ""
					})
				}
				l.stop()
				server.Restart()
				server.Write("t9", false) // 22
				server.Write("t9", true)  // 23: only the history has both
				l = live(t, server, m, []string{"p"}, nil)
				want := []string{"u20/22/MODIFIED", "u20/23/DELETED"}
				if differs {
					want = append(want, "gap 23-23", "u19/19/DELETED+i")
				}
				l.expect("p", want...)
				if gaps := l.gapRecords(); differs && gaps[0].Reason != delta.GapCheck {
					t.Errorf("got %+v", gaps[0])
				}
			})
		}
	}
}
