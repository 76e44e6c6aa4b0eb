package source

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// What an API server or a proxy swallows, the watch cannot notice. The check finds it, and reads the state again behind a gap record.
func TestCheckFindsWhatWasSwallowed(t *testing.T) {
	server := things(t, "a", "b") // 11, 12
	var swallows, swallowing atomic.Bool
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !isWatch(r) || !swallows.Load() {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		for swallowing.Store(true); r.Context().Err() == nil; time.Sleep(5 * time.Millisecond) {
			fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Thing","metadata":{"resourceVersion":"%d"}}}`+"\n", server.Version())
			w.(http.Flusher).Flush()
		}
		return true
	})
	l := live(t, front, newMemory(), []string{"p"}, func(o *Options, _ *life) { o.Check = 50 * time.Millisecond })
	l.watching(12)
	l.snapshotsDone()
	swallows.Store(true)
	eventually(t, func() string {
		server.Cut(false) // more than once: a watch may just have been opened
		if !swallowing.Load() {
			return "no watch is swallowed"
		}
		return ""
	})
	server.Write("a", false) // 13
	server.Write("b", true)  // 14
	server.Write("c", false) // 15
	l.expectSet("p", "gap 15-15", "u11/11/ADDED+s", "u11/13/MODIFIED+i", "u12/12/ADDED+s", "u12/12/DELETED+i", "u15/15/ADDED+i")
	if gaps := l.gapRecords(); gaps[0].Reason != delta.GapCheck {
		t.Errorf("got %+v", gaps[0])
	}
}

// A check beside changes that come finds nothing.
func TestCheckBesideChanges(t *testing.T) {
	server := things(t, "a")
	l := live(t, server, newMemory(), []string{"p"}, func(o *Options, _ *life) { o.Check = time.Millisecond })
	l.watching(11)
	for n := range 300 {
		server.Write(fmt.Sprint("t", n%7), n%5 == 0)
		time.Sleep(time.Millisecond)
	}
	server.Write("last", false)
	l.watching(server.Version())
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got %+v", gaps[0])
	}
	for _, d := range l.sent["p"] {
		if d.Type != delta.Added && d.Inferred {
			t.Errorf("got %s", shortID(d))
		}
	}
}
