package source

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// Two API servers behind a load balancer, one of which does not serve the resource, as in an upgrade that switches an API off or on. The
// watch fails until it meets the other one. Nothing is deleted, and the probe does not fail.
func TestOneOfTwoServersDoesNotServeTheResource(t *testing.T) {
	server := things(t, "a", "b") // 11, 12
	var lost, odd atomic.Bool     // odd is set if the one that does not serve it takes the next connection
	var without sync.Map          // whether a connection is to that one, by the address
	var answers atomic.Int32
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		of, known := without.Load(r.RemoteAddr)
		if !known { // the first request of a connection
			of, _ = without.LoadOrStore(r.RemoteAddr, lost.Load() && !odd.Swap(!odd.Load()))
		}
		if of != true || !strings.HasPrefix(r.URL.Path, "/api/v1") {
			return false
		}
		answers.Add(1)
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/api/v1" {
			fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[]}`)
			return true
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
		return true
	})
	m := newMemory()
	l := live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.absence = absenceRule{answers: 4} })
	l.watching(12)
	for range 5 {
		before := answers.Load()
		lost.Store(true)
		eventually(t, func() string {
			if answers.Load() == before {
				server.Cut(false)
				front.CloseClientConnections()
				return fmt.Sprintf("no connection went to the other one: %+v", l.source.Status()[0])
			}
			if s := l.source.Status()[0]; s.Awaited {
				t.Errorf("/readyz waits: %+v", s)
			}
			return ""
		})
	}
	lost.Store(false)
	server.Write("a", false) // 13
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) != 3 || got[1] != "u11/13/MODIFIED" {
			return fmt.Sprint(got)
		}
		return ""
	})
	l.stop()
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
}

// A built-in resource is gone once all connections have said so for a while. Meanwhile its watch fails, and nothing is inferred.
func TestAbsenceIsConfirmed(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	var connections sync.Map
	var answers atomic.Int32
	front := before(t, server, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/api/v1" {
			answers.Add(1)
			connections.Store(r.RemoteAddr, true)
		}
		return false
	})
	l := live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.absence = absenceRule{answers: 6, span: time.Second} })
	l.watching(11)
	l.snapshotsDone()
	server.SwitchOff(true)
	l.reaches(StateFailing)
	if s := l.source.Status()[0]; s.Ready || s.Awaited || !strings.Contains(s.Error, "does not serve") {
		t.Errorf("got %+v", s)
	}
	server.SwitchOff(false)
	server.Write("a", false) // 12
	l.expect("p", "u11/11/ADDED+s", "u11/12/MODIFIED")
	answers.Store(0)
	begun := time.Now()
	server.SwitchOff(true)
	l.expect("p", "u11/11/ADDED+s", "u11/12/MODIFIED", "gap 12-", "u11/12/DELETED+i")
	l.reaches(StateMissing)
	several := 0
	connections.Range(func(any, any) bool { several++; return true })
	if took := time.Since(begun); answers.Load() < 6 || several < 5 || took < time.Second {
		t.Errorf("gone after %v, %d answers, %d connections in all", took, answers.Load(), several)
	}
}

// table returns what a consumer of these lives has, by the two maxima of docs/consumers.md: uid and resource version of each object.
func table(name string, lives ...*life) (exist []string) {
	highest, mark := map[string]*delta.Delta{}, uint64(0)
	for _, l := range lives {
		l.mu.Lock()
		for _, d := range l.sent[name] {
			if d == nil { // a gap record
				continue
			}
			key := d.Object.Namespace() + "/" + d.Object.Name()
			if before := highest[key]; before == nil || above(d, before) {
				highest[key] = d
			}
		}
		for _, m := range l.marks[name] {
			mark = max(mark, m.SnapshotSequence)
		}
		l.mu.Unlock()
	}
	for _, d := range highest {
		if d.Type != delta.Deleted && max(d.Sequence, d.SnapshotSequence) >= mark {
			exist = append(exist, string(d.Object.UID())+"/"+d.Object.ResourceVersion())
		}
	}
	slices.Sort(exist)
	return exist
}

// above reports whether one delta of an object is above another: by sequence, then a DELETED is above others, then by snapshot.
func above(a, b *delta.Delta) bool {
	if a.Sequence == b.Sequence && (a.Type == delta.Deleted) != (b.Type == delta.Deleted) {
		return a.Type == delta.Deleted
	}
	return cmp.Or(cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.SnapshotSequence, b.SnapshotSequence)) > 0
}

// An API is switched off, and on again: its objects come back in the versions that they had. A table loses them, and has them again, also if
// kubeferry is killed before the deletions are committed. The history has not gone back, even if nothing was written meanwhile.
func TestComesBackInItsVersions(t *testing.T) {
	for _, snapshot := range []delta.Snapshot{delta.SnapshotInitial, delta.SnapshotNever} {
		for _, killed := range []bool{false, true} {
			for _, quiet := range []bool{false, true} {
				t.Run(fmt.Sprintf("snapshot %s, killed %v, quiet %v", snapshot, killed, quiet), func(t *testing.T) {
					comeBackInTheirVersions(t, snapshot, killed, quiet)
				})
			}
		}
	}
}

func comeBackInTheirVersions(t *testing.T, snapshot delta.Snapshot, killed, quiet bool) {
	server, m := things(t), newMemory()
	run := func() *life {
		return live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = snapshot })
	}
	l := run()
	l.watching(10)
	l.snapshotsDone()
	server.Write("a", false) // 11
	server.Write("b", false) // 12
	lives := []*life{l}
	expect := func(want ...string) {
		t.Helper()
		eventually(t, func() string {
			if got := table("p", lives...); !slices.Equal(got, want) {
				return fmt.Sprintf("got %v, want %v", got, want)
			}
			return ""
		})
	}
	expect("u11/11", "u12/12")
	server.SwitchOff(true)
	expect()
	if killed {
		l.crash()
	} else {
		l.reaches(StateMissing)
	}
	if !quiet {
		server.Write("gadgets:c", false)
	}
	server.SwitchOff(false)
	if killed {
		l = run()
		lives = append(lives, l)
	}
	expect("u11/11", "u12/12")
	server.Write("b", false)
	version := server.Version()
	expect("u11/11", fmt.Sprint("u12/", version))
	if d := l.delta(fmt.Sprintf("u12/%d/MODIFIED", version)); d.Restored > 0 {
		t.Errorf("the history has gone back %d times", d.Restored)
	}
}

// The resource is gone before the snapshot that an edit has caused: a table has nothing of what is not selected any more either.
func TestEditedAndGone(t *testing.T) {
	server, m := things(t, "x/a", "y/b"), newMemory()
	before := live(t, server, m, []string{"p"}, selecting("x", "y"))
	before.watching(12)
	before.snapshotsDone()
	before.stop()
	server.SetMissing(true)
	after := live(t, server, m, []string{"p"}, selecting("x"))
	after.reaches(StateMissing)
	eventually(t, func() string {
		if got := table("p", before, after); len(got) > 0 {
			return fmt.Sprintf("the table has %v", got)
		}
		return ""
	})
}

// What no CustomResourceDefinition has defined is of an aggregated API. Without its APIService, as in an upgrade of that, it is away.
func TestAggregatedAPIThatIsAwayIsNotGone(t *testing.T) {
	for name, defined := range map[string]bool{"defined by a CRD": true, "aggregated": false} {
		t.Run(name, func(t *testing.T) {
			var removed, listed atomic.Bool
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				item, served := "", !removed.Load()
				if defined && served {
					item = `{"metadata":{"name":"widgets.example.com"}}`
				}
				switch path := r.URL.Path; {
				case path == "/apis":
					fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
				case strings.HasSuffix(path, "/customresourcedefinitions"):
					listed.Store(true)
					fmt.Fprintf(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[%s]}`, item)
				case path == "/apis/example.com/v1" && served:
					fmt.Fprint(w, `{"kind":"APIResourceList","groupVersion":"example.com/v1","resources":[{"name":"widgets","namespaced":true,"kind":"Widget","verbs":["list","watch"]}]}`)
				case strings.HasSuffix(path, "/widgets") && served && !isWatch(r):
					fmt.Fprint(w, `{"kind":"WidgetList","apiVersion":"example.com/v1","metadata":{"resourceVersion":"11"},"items":[{"metadata":{"name":"a","namespace":"ns","uid":"u11","resourceVersion":"11"}}]}`)
				case strings.HasSuffix(path, "/widgets") && served:
					w.(http.Flusher).Flush()
					for !removed.Load() && r.Context().Err() == nil {
						time.Sleep(time.Millisecond)
					}
				default:
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`)
				}
			}))
			t.Cleanup(front.Close)
			m := newMemory()
			adjust := func(o *Options, _ *life) {
				o.Resources = []schema.GroupVersionResource{{Group: "example.com", Version: "v1", Resource: "widgets"}}
			}
			l := live(t, &sourcetest.Server{Server: front}, m, []string{"p"}, adjust)
			l.watching(11)
			l.snapshotsDone()
			removed.Store(true)
			if defined {
				l.expect("p", "u11/11/ADDED+s", "gap 11-", "u11/11/DELETED+i")
			} else {
				l.reaches(StateFailing)
				listed.Store(false)
				eventually(t, func() string { return map[bool]string{false: "not looked up again"}[listed.Load()] })
				l.expect("p", "u11/11/ADDED+s")
			}
			l.stop()
			l = live(t, &sourcetest.Server{Server: front}, m, []string{"p"}, adjust) // away, or gone, from the start
			if defined {
				l.reaches(StateMissing)
			} else {
				l.reaches(StateFailing)
			}
			if s := l.source.Status()[0]; s.Ready != defined || s.Awaited {
				t.Errorf("it fails the probe: %+v", s)
			}
			l.expect("p")
			l.stop()
		})
	}
}
