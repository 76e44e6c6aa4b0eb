package source

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// after begins a life whose pipelines have what those of another one were sent.
func after(t *testing.T, before *life, server *sourcetest.Server, m *memory, adjust func(*Options)) *life {
	return live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		l.sent["p"] = before.sent["p"]
		l.marks, l.marked = map[string][]*delta.Mark{"p": before.marks["p"]}, map[string][]int{}
		adjust(o)
	})
}

// What an edit of the file does not list any more leaves the table, also if the run in between is killed, and what is listed then in another
// way stays.
func TestEditEndsAWatch(t *testing.T) {
	things, others := sourcetest.Things, schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	for name, test := range map[string]struct {
		resources []schema.GroupVersionResource
		include   []string
		watches   []string
		table     []string
	}{
		"a namespace": {[]schema.GroupVersionResource{things}, []string{"a"}, []string{"things:a"}, []string{"things:a/one"}},
		"a resource":  {[]schema.GroupVersionResource{others}, nil, []string{"namespaces:"}, []string{"namespaces:/a"}},
		"all namespaces instead": {
			[]schema.GroupVersionResource{things}, nil, nil, []string{"things:a/one", "things:b/two"}, // the program forgets the others
		},
	} {
		for _, killed := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				server, m := sourcetest.New(t), newMemory()
				for _, name := range []string{"namespaces:/a", "a/one", "b/two"} {
					server.Write(name, false)
				}
				l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Namespaces.Include = []string{"a", "b"} })
				l.expectTable("things:a/one", "things:b/two")
				l.expectWatches("things:a", "things:b")
				l.stop()
				edit := func(o *Options) { o.Resources, o.Namespaces.Include = test.resources, test.include }
				l = after(t, l, server, m, edit)
				if killed {
					l.expectTable(test.table...)
					l.crash()
					l = after(t, l, server, m, edit)
				}
				l.expectTable(test.table...)
				if test.watches != nil {
					l.expectWatches(test.watches...)
				}
				server.Write("a/one", false)
				server.Write("namespaces:/a", false)
				l.expectTable(test.table...)
				l.stop()
			})
		}
	}
}

// A run that ends a watch may itself be stopped before there is room for the mark. Then the next run sends it; or what exists, if the edit is
// undone.
func TestEditEndsAWatchInTwoRuns(t *testing.T) {
	for _, undone := range []bool{false, true} {
		t.Run(fmt.Sprint("undone ", undone), func(t *testing.T) {
			server, m := things(t, "a"), newMemory()
			l := live(t, server, m, []string{"p"}, nil)
			l.expectTable("things:ns/a")
			l.snapshotsDone()
			l.stop()
			server.ServeGadgets(false) // so that the only mark is that of things
			waits := make(chan string)
			l = live(t, server, m, []string{"p"}, func(o *Options, l *life) {
				o.Resources = []schema.GroupVersionResource{sourcetest.Gadgets}
				l.room, l.waits = map[string]int{"p": -1}, waits
			})
			<-waits
			l.stop()
			l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
				if !undone {
					o.Resources = []schema.GroupVersionResource{sourcetest.Gadgets}
				}
			})
			eventually(t, func() string {
				l.mu.Lock()
				defer l.mu.Unlock()
				return differ(len(l.marks["p"]), 1)
			})
			want := []string(nil)
			if undone {
				want = []string{"gap 11-11", "u11/11/ADDED+s"}
			}
			l.expect("p", want...)
		})
	}
}

// A resource moves to another source, of which only one of the two pipelines takes. The other pipeline gets the mark of an empty snapshot, and
// this one gets what the other source reads, behind a gap record.
func TestEditMovesAResourceOfOnePipeline(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p", "q"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	var other *watcher
	l = live(t, server, m, []string{"p", "q"}, func(o *Options, l *life) {
		moved := *o
		moved.Name, moved.Pipelines = "other", []string{"p"}
		l.others = []*Source{New(nil, moved, l, NewMetrics(prometheus.NewRegistry()), l.logger)}
		other = l.others[0].watches[0]
		o.Resources = []schema.GroupVersionResource{sourcetest.Gadgets}
	})
	if other.state.Gap != delta.GapLost {
		t.Errorf("the other source begins with the gap %q", other.state.Gap)
	}
	marked := func(pipeline string) (resources []string) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, mark := range l.marks[pipeline] {
			resources = append(resources, mark.Resource.Resource)
		}
		slices.Sort(resources)
		return resources
	}
	eventually(t, func() string {
		if got := marked("q"); !slices.Equal(got, []string{"gadgets", "things"}) {
			return fmt.Sprintf("q got marks of %v", got)
		}
		return ""
	})
	l.snapshotsDone()
	if got := marked("p"); !slices.Equal(got, []string{"gadgets"}) {
		t.Errorf("p got marks of %v", got)
	}
}

// The run behind an edit ends before it reads anything. What the next one sends is above all that was sent before the edit, too.
func TestRunBehindAnEditEndsAtOnce(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	before := l.delta("u11/11/ADDED+s").Sequence
	edit := func(o *Options, _ *life) { o.LabelSelector = "another" }
	server.Deny(503, 1<<30)
	live(t, server, m, []string{"p"}, edit).stop()
	server.Deny(0, 0)
	l = live(t, server, m, []string{"p"}, edit)
	l.expect("p", "gap 11-11", "u11/11/ADDED+s")
	if after := l.delta("u11/11/ADDED+s").Sequence; after <= before {
		t.Errorf("the sequence is %d, and was %d before the edit", after, before)
	}
}

// A killed run has sent a first state, of which no commit has an object. The next run begins to read the same list, and is stopped. What is deleted
// then is below the mark of the third run.
func TestFirstReadingBehindAKillEndsInTwoRuns(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.expectTable("things:ns/a", "things:ns/b", "things:ns/c")
	killed := l.delta("u12/12/ADDED+s")
	l.crash()
	l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
	l.expect("p", "gap -13", "u11/11/ADDED+s")
	l.stop()
	server.Write("b", true) // 14
	l = live(t, server, m, []string{"p"}, nil)
	l.watching(14)
	l.snapshotsDone()
	l.mu.Lock()
	defer l.mu.Unlock()
	marks := l.marks["p"]
	if last := marks[len(marks)-1].SnapshotSequence; last <= killed.SnapshotSequence {
		t.Errorf("the last mark is at %d, and what the killed run sent names %d", last, killed.SnapshotSequence)
	}
}

// The list behind an edit of a selector expires between two pages, and an object of the first page is gone when it is read again. A pipeline
// to which leaving is not announced gets no DELETED of it, so the mark must be above what it was sent.
func TestReadingBehindAnEditStartsOver(t *testing.T) {
	server, m := things(t), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(10)
	l.snapshotsDone()
	l.stop()
	for _, name := range []string{"a", "b", "c", "d"} { // a page has three
		server.Write(name, false)
	}
	released := make(chan struct{})
	l = live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		o.LabelSelector = "another"
		l.after, l.released = 2, released
	})
	l.expect("p", "gap 10-14", "u11/11/ADDED+i", "u12/12/ADDED+i")
	server.Write("a", true)
	server.Compact()
	close(released)
	l.watching(16)
	l.snapshotsDone()
	l.mu.Lock()
	defer l.mu.Unlock()
	gone, marks := l.deltas["u11/11/ADDED+i"], l.marks["p"]
	if mark := marks[len(marks)-1]; len(marks) != 1 || mark.SnapshotSequence <= max(gone.Sequence, gone.SnapshotSequence) {
		t.Errorf("got %d marks, the last one of %d; what is gone has the sequence %d, and names %d", len(marks), mark.SnapshotSequence, gone.Sequence, gone.SnapshotSequence)
	}
}
