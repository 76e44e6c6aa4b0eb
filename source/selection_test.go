package source

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// selected begins a source of the namespaces that the server has, as objects of the resource namespaces.
func selected(t *testing.T, server *sourcetest.Server, m *memory, adjust func(*Options, *life)) *life {
	return live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		o.NamespaceSelector, o.discovery = "team", 10*time.Millisecond
		if adjust != nil {
			adjust(o, l)
		}
	})
}

// table is what a consumer has that keeps the two maxima of docs/consumers.md, sorted.
func (l *life) table() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	highest := map[string]*delta.Delta{}
	for _, d := range l.sent["p"] {
		if d == nil {
			continue
		}
		subject := d.Resource.Resource + ":" + d.Object.Namespace() + "/" + d.Object.Name()
		last := highest[subject]
		if last == nil || d.Sequence > last.Sequence || d.Sequence == last.Sequence && (d.Type == delta.Deleted || last.Type != delta.Deleted && d.SnapshotSequence > last.SnapshotSequence) {
			highest[subject] = d
		}
	}
	marks := map[string]uint64{}
	for _, m := range l.marks["p"] {
		if !m.Incomplete {
			in := m.Resource.Resource + ":" + m.Namespace
			marks[in] = max(marks[in], m.SnapshotSequence)
		}
	}
	maps.DeleteFunc(highest, func(_ string, d *delta.Delta) bool {
		mark := max(marks[d.Resource.Resource+":"+d.Object.Namespace()], marks[d.Resource.Resource+":"])
		return d.Type == delta.Deleted || max(d.Sequence, d.SnapshotSequence) < mark
	})
	return slices.Sorted(maps.Keys(highest))
}

func (l *life) expectTable(want ...string) {
	l.t.Helper()
	eventually(l.t, func() string {
		if got := l.table(); !slices.Equal(got, want) {
			return fmt.Sprintf("the table has %q, want %q", got, want)
		}
		return ""
	})
}

// expectWatches waits until there are the watches, as "things:a", and nothing is kept of others.
func (l *life) expectWatches(want ...string) {
	l.t.Helper()
	eventually(l.t, func() string {
		var got []string
		for _, w := range l.source.all() {
			got = append(got, w.collection.resource.Resource+":"+w.collection.namespace)
		}
		slices.Sort(got)
		l.capture()
		l.memory.mu.Lock()
		defer l.memory.mu.Unlock()
		if !slices.Equal(got, want) || len(l.memory.meta) != len(want) || len(l.memory.known) != len(want) {
			return fmt.Sprintf("watches %q, kept of %d, want %q", got, len(l.memory.meta), want)
		}
		return ""
	})
}

// A namespace that begins to match begins with a snapshot of its own, and one that ceases to match leaves an empty one. All that is sent of a
// namespace that matches again is above what was sent before.
func TestNamespacesBeginAndCeaseToMatch(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	for _, name := range []string{"namespaces:/a", "a/one", "b/two", "c/other"} {
		server.Write(name, false)
	}
	l := selected(t, server, m, nil)
	l.expectWatches("things:a")
	l.expectTable("things:a/one")
	server.Write("namespaces:/b", false)
	l.expectTable("things:a/one", "things:b/two")
	server.Write("b/three", false)
	l.expectTable("things:a/one", "things:b/three", "things:b/two")
	l.expectWatches("things:a", "things:b")

	server.Write("namespaces:/b", true)
	l.expectWatches("things:a")
	l.expectTable("things:a/one")
	server.Write("b/two", false) // no record is sent of it
	server.Write("b/three", true)
	server.Write("a/one", false)
	server.Write("a/four", false)
	l.expectTable("things:a/four", "things:a/one")

	server.Write("namespaces:/b", false)
	l.expectTable("things:a/four", "things:a/one", "things:b/two")
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("a gap record: %+v", gaps[0])
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, mark := range l.marks["p"] {
		if mark.Namespace == "" {
			t.Errorf("a mark of all namespaces")
		}
	}
}

// Without a state directory sequences cannot be raised. So only the mark reports what leaves.
func TestNamespacesWithoutState(t *testing.T) {
	server := sourcetest.New(t)
	for _, name := range []string{"namespaces:/a", "namespaces:/b", "a/one", "b/two"} {
		server.Write(name, false)
	}
	var r recorder
	s := run(t, server, &r, func(o *Options) { o.NamespaceSelector = "team" })
	eventually(t, func() string { return differ(len(r.ids()), 2) })
	server.Write("namespaces:/b", true)
	eventually(t, func() string { return differ(len(s.all()), 1) })
	server.Write("namespaces:/b", false)
	eventually(t, func() string { return differ(len(r.ids()), 3) })
	if got := r.ids()[2]; got != "u14/14/ADDED+s" {
		t.Errorf("got %s", got)
	}
	eventually(t, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return differ(len(r.marks), 4) // of a, of b, of what b leaves, of b again
	})
	if last := r.marks[3]; last.Namespace != "b" || last.SnapshotSequence < r.marks[2].SnapshotSequence {
		t.Errorf("the last mark is %+v, and before was %+v", last, r.marks[2])
	}
}

func differ(got, want int) string {
	if got == want {
		return ""
	}
	return fmt.Sprintf("got %d, want %d", got, want)
}

// The objects of a namespace that is deleted are deleted before it. Their watch brings that, however late, and ends then.
func TestDeletedNamespaceIsToldToItsEnd(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	for _, name := range []string{"namespaces:/a", "a/one", "a/two"} {
		server.Write(name, false)
	}
	release := make(chan struct{})
	l := selected(t, server, m, func(_ *Options, l *life) { l.after, l.released = 2, release })
	l.expectTable("things:a/one", "things:a/two")
	l.snapshotsDone()
	for _, name := range []string{"a/three", "a/three", "a/one"} { // the first one blocks
		server.Write(name, false)
	}
	for _, name := range []string{"a/one", "a/two", "a/three", "namespaces:/a"} {
		server.Write(name, true)
	}
	eventually(t, func() string {
		for _, w := range l.source.Status() {
			if w.Ending {
				return ""
			}
		}
		return "no watch is ending"
	})
	close(release)
	l.expectWatches()
	l.expect("p", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED", "u14/15/MODIFIED", "u12/16/MODIFIED", "u12/17/DELETED", "u13/18/DELETED", "u14/19/DELETED")
}

// A namespace that does not match any more after a restart is reported to its end, too.
func TestNamespaceDeletedWhileStopped(t *testing.T) {
	for name, end := range map[string]func(l *life){"stopped": (*life).stop, "killed": (*life).crash} {
		t.Run(name, func(t *testing.T) {
			server, m := sourcetest.New(t), newMemory()
			for _, name := range []string{"namespaces:/a", "namespaces:/b", "a/one", "b/two"} {
				server.Write(name, false)
			}
			l := selected(t, server, m, nil)
			l.expectTable("things:a/one", "things:b/two")
			l.snapshotsDone()
			l.expectWatches("things:a", "things:b")
			end(l)
			server.Write("a/one", false)
			server.Write("a/one", true)
			server.Write("namespaces:/a", true)
			server.Write("namespaces:/c", false)
			server.Write("c/new", false)
			l = selected(t, server, m, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever })
			l.expectWatches("things:b", "things:c")
			l.expectSet("p", "u13/15/MODIFIED", "u13/16/DELETED", "u19/19/ADDED+i") // new since, so sent without snapshots too
		})
	}
}

// A namespace may be deleted with the right to read it: what was not read then is reported like the objects of a resource that is gone.
func TestNamespaceDeletedWithItsRight(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	for _, name := range []string{"namespaces:/a", "namespaces:/b", "a/one", "b/two"} {
		server.Write(name, false)
	}
	var forbidden atomic.Bool
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !forbidden.Load() || !strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/a/") {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)
		return true
	})
	l := selected(t, front, m, nil)
	l.expectTable("things:a/one", "things:b/two")
	l.snapshotsDone()
	forbidden.Store(true)
	server.SetSilent(true)
	server.Write("a/one", true)
	eventually(t, func() string {
		server.Cut(false) // more than once: a watch may just have been opened
		for _, w := range l.source.Status() {
			if w.Namespace == "a" && w.State == StateFailing {
				return ""
			}
		}
		return "nothing fails"
	})
	server.SetSilent(false)
	l.expectWatches("things:a", "things:b") // the namespace exists
	server.Write("namespaces:/a", true)
	l.expectWatches("things:b")
	l.expectTable("things:b/two")
	if gaps := l.gapRecords(); len(gaps) != 1 || gaps[0].Reason != delta.GapGone || gaps[0].Namespace != "a" {
		t.Errorf("gap records %+v", gaps)
	}
}

// Of a resource without bookmarks, lists show whether the watch has brought all.
func TestNamespaceCeasesToMatchWithoutBookmarks(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	server.NoBookmarks = true
	for _, name := range []string{"namespaces:/a", "a/one", "a/two"} {
		server.Write(name, false)
	}
	release := make(chan struct{})
	l := selected(t, server, m, func(o *Options, l *life) {
		o.bookmarks, o.Announcing = 10*time.Millisecond, o.all()
		l.after, l.released = 2, release
	})
	l.expectTable("things:a/one", "things:a/two")
	l.snapshotsDone()
	server.Write("a/one", false) // this blocks
	server.Write("a/two", true)
	server.Write("namespaces:/a", true)
	close(release)
	l.expectWatches()
	l.expect("p", "u12/12/ADDED+s", "u13/13/ADDED+s", "u12/14/MODIFIED", "u13/15/DELETED", "u12/14/DELETED+i")
}

// A restart while a namespace leaves, which is selected again then: without snapshots, too, what was announced as DELETED is sent as ADDED.
func TestNamespaceMatchesAgainAfterARestart(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	for _, name := range []string{"namespaces:/a", "a/one", "a/two"} {
		server.Write(name, false)
	}
	never := func(o *Options, _ *life) { o.Snapshot, o.Announcing = delta.SnapshotNever, o.all() }
	l := selected(t, server, m, func(o *Options, l *life) {
		never(o, l)
		l.after = 3
	})
	l.expectWatches("things:a")
	eventually(t, func() string {
		if s := l.source.Status()[1]; s.State != StateWatching {
			return fmt.Sprint(s)
		}
		return ""
	})
	server.Write("a/one", false) // 14
	server.Write("a/two", false) // 15
	l.expect("p", "u12/14/MODIFIED", "u13/15/MODIFIED")
	server.Write("namespaces:/a", true)
	eventually(t, func() string { return map[bool]string{true: "nothing has left"}[len(l.sorted("p")) < 3] })
	l.stop()
	left, _ := strings.CutSuffix(l.got["p"][2], "/DELETED+i")
	server.Write("namespaces:/a", false) // 17
	l = selected(t, server, m, never)
	l.expect("p", "gap 16-17", left+"/ADDED+i")
}

// What a lost state knew of a namespace is not known, nor what happened between an ended watch of all namespaces and the new ones: a gap record
// precedes the snapshot.
func TestSelectionBehindWhatIsNotKnown(t *testing.T) {
	for name, before := range map[string]func(*Options){
		"a lost state":                  nil,
		"a watch of all the namespaces": func(*Options) {},
		"a watch of another namespace":  func(o *Options) { o.Namespaces.Include = []string{"z"} },
	} {
		t.Run(name, func(t *testing.T) {
			server, m := sourcetest.New(t), newMemory()
			for _, name := range []string{"namespaces:/a", "a/one"} {
				server.Write(name, false)
			}
			highest := uint64(0)
			if before != nil {
				l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { before(o) })
				eventually(t, func() string {
					if !l.source.Status()[0].Ready {
						return "not ready"
					}
					return ""
				})
				l.snapshotsDone()
				l.stop()
				for _, d := range l.sent["p"] {
					highest = max(highest, d.Sequence)
				}
			}
			l := selected(t, server, m, func(o *Options, _ *life) { o.HistoryLost = before == nil })
			l.expectTable("things:a/one")
			l.snapshotsDone()
			want := 1
			if name == "a watch of another namespace" { // which is one that is not selected, and ends
				want = 0
			}
			if got := len(l.gapRecords()); got != want {
				t.Errorf("%d gap records, want %d", got, want)
			}
			for _, d := range l.sent["p"] {
				if d != nil && d.Sequence <= highest {
					t.Errorf("%s has the sequence %d, and %d was sent before", shortID(d), d.Sequence, highest)
				}
			}
		})
	}
}

// What cannot be read ends no watch, and shows.
func TestUnreadableSelectionEndsNothing(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	for _, name := range []string{"namespaces:/a", "a/one"} {
		server.Write(name, false)
	}
	l := selected(t, server, m, nil)
	l.expectTable("things:a/one")
	server.Deny(403, 1<<30)
	server.Cut(false)
	eventually(t, func() string {
		for _, w := range l.source.Status() {
			if w.Resource == "v1/namespaces" && w.State == StateFailing && w.Error != "" {
				return ""
			}
		}
		return "no status says that the namespaces cannot be read"
	})
	l.expectWatches("things:a")
	l.stop()
	l = selected(t, server, m, nil) // it still cannot be read
	eventually(t, func() string {
		if namespaces := l.source.Status()[0]; namespaces.State != StateFailing {
			return "it can be read"
		}
		return ""
	})
	l.expectWatches("things:a")
	server.Deny(0, 0)
	server.Write("a/one", false)
	l.expect("p", "u12/13/MODIFIED")
}

// A wildcard stands for all resources that can be watched and have namespaces, where the source selects these, but for those that are left out.
func TestWildcard(t *testing.T) {
	all := schema.GroupVersionResource{Version: "v1", Resource: "*"}
	for name, tt := range map[string]struct {
		adjust func(*Options)
		want   []string
	}{
		"all":                {func(*Options) {}, []string{"gadgets:", "namespaces:", "things:"}},
		"but for one":        {func(o *Options) { o.Exclude = []schema.GroupResource{{Resource: "gadgets"}} }, []string{"namespaces:", "things:"}},
		"beside a named one": {func(o *Options) { o.Resources = append(o.Resources, sourcetest.Gadgets) }, []string{"gadgets:", "namespaces:", "things:"}},
		"in namespaces":      {func(o *Options) { o.Namespaces.Include = []string{"a", "b"} }, []string{"gadgets:a", "gadgets:b", "things:a", "things:b"}},
		"by labels":          {func(o *Options) { o.NamespaceSelector = "team" }, []string{"gadgets:a", "things:a"}},
		"by both":            {func(o *Options) { o.NamespaceSelector, o.Namespaces.Exclude = "team", []string{"a"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := sourcetest.New(t), newMemory()
			for _, name := range []string{"namespaces:/a", "a/one", "gadgets:a/two"} {
				server.Write(name, false)
			}
			l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
				o.Resources = []schema.GroupVersionResource{all}
				tt.adjust(o)
			})
			l.expectWatches(tt.want...)
			var table []string
			for _, object := range []string{"gadgets:a/two", "namespaces:/a", "things:a/one"} {
				resource, _, _ := strings.Cut(object, ":")
				if slices.ContainsFunc(tt.want, func(w string) bool { return w == resource+":" || w == resource+":a" }) {
					table = append(table, object)
				}
			}
			l.expectTable(table...)
		})
	}
}

// A namespace is removed from the list of a source with a wildcard: the watches of its resources end, those that are named and the others.
func TestWildcardInANamespaceLess(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	for _, name := range []string{"a/one", "b/two", "gadgets:b/three"} { // 11 to 13
		server.Write(name, false)
	}
	in := func(namespaces ...string) *life {
		return live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
			o.Resources = []schema.GroupVersionResource{sourcetest.Things, {Version: "v1", Resource: "*"}}
			o.Namespaces.Include, o.Announcing = namespaces, o.all()
		})
	}
	l := in("a", "b")
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s")
	l.snapshotsDone()
	l.stop()
	l = in("a")
	l.expectSet("p", "u12/12/DELETED+i", "u13/13/DELETED+i")
	l.expectWatches("gadgets:a", "things:a")
	l.stop()
	marks := map[string]bool{}
	for _, m := range l.marks["p"] {
		marks[m.Resource.Resource+":"+m.Namespace] = true
	}
	if !marks["gadgets:b"] || !marks["things:b"] {
		t.Errorf("marks of %v", slices.Sorted(maps.Keys(marks)))
	}
}

// A resource that comes later is watched from then on: what exists of it is new, also without snapshots. When it is gone, its objects are
// deleted, and its watch ends.
func TestWildcardResourceComesAndGoes(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	server.Defined = true
	server.ServeGadgets(false)
	begin := func() *life {
		return live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
			o.Resources, o.Exclude = []schema.GroupVersionResource{{Version: "v1", Resource: "*"}}, []schema.GroupResource{{Resource: "namespaces"}}
			o.Snapshot, o.discovery = delta.SnapshotNever, 10*time.Millisecond
		})
	}
	l := begin()
	l.expectWatches("things:")
	eventually(t, func() string { return differ(l.source.Status()[1].Known, 1) })
	server.Write("gadgets:ns/g", false)
	server.ServeGadgets(true)
	l.expect("p", "u12/12/ADDED+i")
	l.expectWatches("gadgets:", "things:")
	server.Write("gadgets:ns/g", false)
	l.expect("p", "u12/12/ADDED+i", "u12/13/MODIFIED")
	l.stop()

	server.ServeGadgets(false) // while it is stopped
	l = begin()
	l.expectSet("p", "gap 13-", "u12/13/DELETED+i")
	l.expectWatches("things:")
	if known := l.source.Status()[0]; known.Resource != "v1/*" || known.State != StateWatching || known.Known != 1 {
		t.Errorf("the status of the wildcard is %+v", known)
	}
}

// Discovery that cannot be read ends no watch, and shows.
func TestUnreadableDiscoveryEndsNothing(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	var away atomic.Bool
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !away.Load() || r.URL.Path != "/api/v1" {
			return false
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	begin := func() *life {
		return live(t, front, m, []string{"p"}, func(o *Options, _ *life) {
			o.Resources, o.discovery = []schema.GroupVersionResource{{Version: "v1", Resource: "*"}}, 10*time.Millisecond
		})
	}
	for _, want := range []string{"u11/11/ADDED+s", "u11/12/MODIFIED"} {
		l := begin()
		if away.Load() {
			l.expectWatches("gadgets:", "namespaces:", "things:")
			away.Store(false)
			server.Write("a", false) // 12
		}
		l.expect("p", want)
		l.expectWatches("gadgets:", "namespaces:", "things:")
		away.Store(true)
		eventually(t, func() string {
			if wildcard := l.source.Status()[0]; wildcard.Resource != "v1/*" || wildcard.State != StateFailing || wildcard.Error == "" {
				return "no status says that discovery cannot be read"
			}
			return ""
		})
		l.expectWatches("gadgets:", "namespaces:", "things:")
		l.stop()
	}
}

// A wildcard takes each resource in one version: the one that is watched as long as that is served, else the one that the API server prefers.
func TestVersionsOfWildcards(t *testing.T) {
	served := func(names ...string) (all []Served) {
		for _, name := range names {
			gvr, err := delta.ParseResource(name)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, Served{GroupVersionResource: gvr, Namespaced: !strings.HasSuffix(name, "/nodes")})
		}
		return all
	}
	gvrs := func(names ...string) (all []schema.GroupVersionResource) {
		for _, s := range served(names...) {
			all = append(all, s.GroupVersionResource)
		}
		return all
	}
	both := served("g.io/v2/a", "g.io/v2/b", "g.io/v2/nodes", "g.io/v1/a", "g.io/v1/c", "other.io/v1/a")
	all, first := schema.GroupVersionResource{Group: "g.io", Resource: "*"}, schema.GroupVersionResource{Group: "g.io", Version: "v1", Resource: "*"}
	for name, tt := range map[string]struct {
		options Options
		watched []string
		want    []string
	}{
		"preferred":      {Options{Resources: []schema.GroupVersionResource{all}}, nil, []string{"g.io/v2/a", "g.io/v2/b", "g.io/v2/nodes", "g.io/v1/c"}},
		"watched":        {Options{Resources: []schema.GroupVersionResource{all}}, []string{"g.io/v1/a", "g.io/v1/b"}, []string{"g.io/v1/a", "g.io/v2/b", "g.io/v2/nodes", "g.io/v1/c"}},
		"one version":    {Options{Resources: []schema.GroupVersionResource{first}}, nil, []string{"g.io/v1/a", "g.io/v1/c"}},
		"in namespaces":  {Options{Resources: []schema.GroupVersionResource{all}, NamespaceSelector: "x"}, nil, []string{"g.io/v2/a", "g.io/v2/b", "g.io/v1/c"}},
		"named":          {Options{Resources: append(gvrs("g.io/v1/a"), all)}, nil, []string{"g.io/v2/b", "g.io/v2/nodes", "g.io/v1/c"}},
		"without others": {Options{Resources: []schema.GroupVersionResource{all}, Exclude: []schema.GroupResource{{Group: "g.io", Resource: "a"}}}, nil, []string{"g.io/v2/b", "g.io/v2/nodes", "g.io/v1/c"}},
	} {
		if got := tt.options.matching(both, gvrs(tt.watched...)); !slices.Equal(got, gvrs(tt.want...)) {
			t.Errorf("%s: got %v, want %v", name, got, tt.want)
		}
	}
}
