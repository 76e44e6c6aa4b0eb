package source

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// configured is a source of one configuration: its name, its pipelines and what it includes.
type configured struct {
	name, pipelines, include string
}

// run starts the sources of a configuration on one memory, waits until they watch, and returns what each pipeline got until
// the run is stopped.
func (m *memory) run(t *testing.T, server *sourcetest.Server, during func(got func() map[string]string), sources ...configured) {
	t.Helper()
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	var lives []*life
	var made []*Source
	for _, s := range sources {
		l := &life{t: t, memory: m, names: strings.Fields(s.pipelines), got: map[string][]string{}, sent: map[string][]*delta.Delta{}, deltas: map[string]*delta.Delta{}}
		options := Options{
			Name: s.name, Resources: []schema.GroupVersionResource{sourcetest.Things}, absence: absenceRule{answers: 1}, Snapshot: delta.SnapshotInitial, Pipelines: l.names,
			Namespaces: delta.Namespaces{Include: strings.Fields(s.include)},
			Backoff:    wait.Backoff{Duration: time.Millisecond, Steps: 1000, Factor: 1},
		}
		l.source = New(client, options, l, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		lives, made = append(lives, l), append(made, l.source)
	}
	forgotten, err := Restore(m, made...)
	if err != nil || len(forgotten) > 0 {
		t.Fatalf("forgotten %v, %v", forgotten, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	for _, l := range lives {
		running.Go(func() { l.source.Run(ctx) })
	}
	for _, l := range lives {
		l.watching(server.Version())
		l.snapshotsDone()
	}
	during(func() map[string]string {
		got := map[string]string{}
		for _, l := range lives {
			for _, name := range l.names {
				got[name] = strings.Join(l.sorted(name), " ")
			}
		}
		return got
	})
	cancel()
	running.Wait()
	m.clean = true
	for _, l := range lives {
		for _, w := range l.source.watches { // as the first commit of a run writes all that was inherited
			w.state.changed = true
			for _, key := range allKeys(t, w) {
				w.known().change(key)
			}
		}
	}
	for id := range m.meta {
		delete(m.meta, id)
		delete(m.known, id)
	}
	for _, l := range lives {
		m.commit(l.source.Capture())
		l.source.Committed()
	}
}

// allKeys returns the names of all known objects of a watch.
func allKeys(t *testing.T, w *watcher) []objectKey {
	t.Helper()
	keys, err := w.hashedNames(t.Context(), func(knownObject) bool { return true })
	if err != nil {
		t.Fatal(err)
	}
	for entry := range w.known().all {
		if !w.known().isHashed(entry) {
			keys = append(keys, objectKey(entry))
		}
	}
	return keys
}

// Whatever is edited between two runs, a pipeline that has an object gets its deletion.
func TestEditsOfSources(t *testing.T) {
	tests := []struct {
		name          string
		before, after []configured
		want          map[string]string // what was sent of things shop/a (deleted) and team/b (still there)
	}{
		{
			"two become one",
			[]configured{{"a", "p", "*"}, {"b", "q", "*"}},
			[]configured{{"c", "p q", "*"}},
			map[string]string{"p": "u11/14/DELETED", "q": "u11/14/DELETED"},
		},
		{
			"two become one that keeps a name",
			[]configured{{"a", "p", "*"}, {"b", "q", "*"}},
			[]configured{{"b", "p q", "*"}},
			map[string]string{"p": "u11/14/DELETED u12/12/ADDED+s", "q": "u11/14/DELETED"},
		},
		{
			"another source takes the name",
			[]configured{{"a", "p", "*"}},
			[]configured{{"a", "q", "team"}, {"b", "p", "team*"}},
			map[string]string{"p": "u11/11/DELETED+i", "q": "u12/12/ADDED+s"},
		},
		{
			"a pipeline moves from one source to another",
			[]configured{{"a", "p r", "sho*"}, {"b", "q", "tea*"}},
			[]configured{{"a", "r", "sho*"}, {"b", "p q", "tea*"}},
			map[string]string{"p": "u11/11/DELETED+i u12/12/ADDED+s", "q": "", "r": "u11/14/DELETED"},
		},
		{
			"a pipeline moves to a source of which one watch stays",
			[]configured{{"a", "q", "*"}, {"b", "p", "team"}},
			[]configured{{"b", "p q", "team shop"}},
			map[string]string{"p": "u11/14/DELETED", "q": "u11/14/DELETED u12/12/ADDED+s"},
		},
		{
			"one becomes two for two pipelines",
			[]configured{{"a", "p q", "*"}},
			[]configured{{"b", "p", "sho*"}, {"c", "q", "tea*"}},
			map[string]string{"p": "u11/14/DELETED u12/12/DELETED+i+left", "q": "u11/11/DELETED+i"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b", "zoo/c"), newMemory() // 11 to 13
			m.run(t, server, func(func() map[string]string) {}, tt.before...)
			server.Away(func() { server.Write("shop/a", true) }) // 14
			m.run(t, server, func(got func() map[string]string) {
				eventually(t, func() string {
					for name, text := range got() {
						var of []string
						for _, id := range strings.Fields(text) {
							if !strings.HasPrefix(id, "u13/") {
								of = append(of, id)
							}
						}
						if text := strings.Join(of, " "); text != tt.want[name] {
							return fmt.Sprintf("%s got  %s\nwant %s", name, text, tt.want[name])
						}
					}
					return ""
				})
			}, tt.after...)
		})
	}
}

// Two sources became one, and the resource is gone: no mark shows the moved pipeline that an object of the other source is gone.
func TestGoneWithinAMove(t *testing.T) {
	server, m := things(t, "shop/a"), newMemory() // 11
	m.run(t, server, func(func() map[string]string) {}, configured{"a", "p", "*"}, configured{"b", "q", "*"})
	server.SwitchOff(true)
	l := live(t, server, m, []string{"p", "q"}, func(o *Options, _ *life) { o.Name = "b" })
	eventually(t, func() string {
		if gaps := l.gapRecords(); len(gaps) != 1 || !gaps[0].Unclean {
			return fmt.Sprintf("gaps %+v", gaps)
		}
		return ""
	})
}

// A history that goes back while a gap is open is noticed before the state is read: its versions come again.
func TestRollbackBehindARefusal(t *testing.T) {
	server := things(t, "a", "b", "c") // 11 to 13
	m := newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(13)
	l.stop()
	for id, text := range m.meta { // the last run was stopped behind the gap record
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
		meta.Refused = "expired"
		m.meta[id], _ = json.Marshal(meta)
	}
	server.RollBack(11)
	reported := make(chan error, 1)
	front := before(t, server, func(http.ResponseWriter, *http.Request) bool { return false })
	l = live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.OnRollback = func(err error) { reported <- err } })
	select {
	case err := <-reported:
		if !strings.Contains(err.Error(), "gone back") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("nothing reported")
	}
	l.expect("p")
}

// stoppedAt makes the last run of a source end at an earlier position than it did, as one does that a full backlog held back.
func (m *memory) stoppedAt(t *testing.T, source, position string, forget ...string) {
	t.Helper()
	for id, text := range m.meta {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
		if meta.Source != source {
			continue
		}
		meta.Position = position
		m.meta[id], _ = json.Marshal(meta)
		for _, name := range forget {
			delete(m.known[id], name)
		}
	}
}

// A watch that goes on with what others had does so from its own position only if that was theirs: what happened between the two
// would be missing without a gap record, or what was sent beyond its own would pass for what is not selected any more.
func TestAdoptedAtAnotherPosition(t *testing.T) {
	for _, behind := range []string{"a", "b"} {
		t.Run(behind+" was behind", func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
			before := []configured{{"a", "p", "sho*"}, {"b", "q", "tea*"}}
			m.run(t, server, func(func() map[string]string) {}, before...)
			server.Away(func() {
				server.Write("shop/a", false) // 13
				server.Write("shop/a", false) // 14
				server.Write("shop/n", false) // 15
			})
			m.run(t, server, func(got func() map[string]string) {
				eventually(t, func() string {
					if text := got()["p"]; !strings.Contains(text, "u15/15/ADDED") {
						return text
					}
					return ""
				})
			}, before...)
			if behind == "a" {
				m.stoppedAt(t, "a", "12", "shop/n")
				for id, known := range m.known {
					if k, ok := known["shop/a"]; ok {
						k.Version = delta.NewVersion("u11", "11")
						m.known[id]["shop/a"] = k
					}
				}
				m.stoppedAt(t, "b", "15")
			} else {
				m.stoppedAt(t, "a", "15")
				m.stoppedAt(t, "b", "12")
			}
			m.run(t, server, func(got func() map[string]string) {
				eventually(t, func() string {
					text := got()["p"]
					if !strings.Contains(text, "gap 12-15") {
						return "no gap: " + text
					}
					if strings.Contains(text, "left") || strings.Contains(text, "DELETED") {
						t.Fatalf("what exists and is selected was sent as deleted: %s", text)
					}
					if behind == "a" && (!strings.Contains(text, "u11/14/MODIFIED+i") || !strings.Contains(text, "u15/15/ADDED")) {
						return text
					}
					return ""
				})
			}, configured{"b", "p q", "sho* tea*"})
		})
	}
}

// A pipeline that has an object made anew gets it again where the watch that it is merged with has the former one only: behind the
// DELETED of that, and under an id that no transport has seen.
func TestMadeAnewBetweenThePositionsOfTwo(t *testing.T) {
	server, m := things(t, "shop/a"), newMemory() // 11
	before := []configured{{"a", "p", "*"}, {"b", "q", "*"}}
	m.run(t, server, func(func() map[string]string) {}, before...)
	server.Write("shop/a", true)  // 12
	server.Write("shop/a", false) // 13
	m.run(t, server, func(func() map[string]string) {}, before...)
	m.stoppedAt(t, "b", "11")
	for id, text := range m.meta {
		if strings.Contains(string(text), `"source":"b"`) {
			k := m.known[id]["shop/a"]
			k.Version = delta.NewVersion("u11", "11")
			m.known[id]["shop/a"] = k
		}
	}
	l := live(t, server, m, []string{"p", "q"}, func(o *Options, _ *life) { o.Name = "c" })
	for _, name := range l.names {
		l.expect(name, "gap 11-13", "u11/11/DELETED+i", "u13/13/ADDED+i")
	}
	gone, anew := l.delta("u11/11/DELETED+i"), l.delta("u13/13/ADDED+i")
	if sequence(gone) < 13 || !after(anew, sequence(gone)) || anew.SnapshotID == "" {
		t.Errorf("sequences %d and %d, the ADDED in %q", sequence(gone), sequence(anew), anew.SnapshotID)
	}
}

// A killed run may have sent objects that no commit names. Where the file was edited since, and they are not selected any more, only
// a gap record can say so. The history goes on behind it.
func TestKilledAndEdited(t *testing.T) {
	for name, tt := range map[string]struct {
		include string
		clean   bool
		want    []string
	}{
		"killed and edited":         {include: "sho*", want: []string{"gap 12-15", "u11/15/MODIFIED", "u12/12/DELETED+i+left", "u14/14/ADDED"}},
		"killed, names for a glob":  {include: "shop", want: []string{"gap 12-15", "u11/15/MODIFIED", "u12/12/DELETED+i+left", "u14/14/ADDED"}},
		"killed":                    {include: "*", want: []string{"u11/15/MODIFIED", "u13/13/ADDED", "u14/14/ADDED"}},
		"stopped and edited":        {include: "sho*", clean: true, want: []string{"u11/15/MODIFIED", "u12/12/DELETED+i+left", "u13/13/DELETED+i+left"}},
		"stopped, names for a glob": {include: "shop", clean: true, want: []string{"u11/15/MODIFIED", "u12/12/DELETED+i+left", "u13/13/DELETED+i+left"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
			including := func(include string) func(*Options, *life) {
				return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: []string{include}} }
			}
			l := live(t, server, m, []string{"p"}, including("*"))
			l.watching(12)
			l.snapshotsDone()
			l.capture()
			server.Write("team/new", false) // 13
			server.Write("shop/new", false) // 14
			l.watching(14)
			if tt.clean {
				l.stop()
			} else {
				l.crash()
			}
			server.Away(func() { server.Write("shop/a", false) }) // 15
			l = live(t, server, m.clone(), []string{"p"}, including(tt.include))
			l.expectSet("p", tt.want...)
			if gaps := l.gapRecords(); len(gaps) > 0 && (!gaps[0].Unclean || gaps[0].Reason != killedAndEdited) {
				t.Errorf("got %+v", gaps[0])
			}
			l.crash() // before its first commit
			l = live(t, server, m, []string{"p"}, including(tt.include))
			l.expectSet("p", tt.want...)
			l.stop()
			live(t, server, m, []string{"p"}, including(tt.include)).watching(15)
		})
	}
}

// filtering sets the filter of a pipeline that announces what leaves.
func filtering(name string) func(*Options, *life) {
	return func(o *Options, l *life) {
		o.Filters, l.onLeave = []string{name}, true
		l.passes = func(_ string, object *delta.Object) bool { return strings.Contains(name, object.Name()) }
	}
}

// So may objects that the edited filters of their pipeline keep back.
func TestKilledAndFiltersEdited(t *testing.T) {
	for name, tt := range map[string]struct {
		filter       string
		clean, older bool
		want         []string
	}{
		"killed and edited":       {filter: "b", want: []string{"gap 12-15", "u11/14/DELETED"}},
		"killed":                  {filter: "abc", want: []string{"u11/14/MODIFIED", "u13/13/ADDED", "u13/15/DELETED"}},
		"stopped and edited":      {filter: "b", clean: true, want: []string{"u13/15/DELETED"}},
		"killed an older version": {filter: "abc", older: true, want: []string{"gap 12-15", "u11/14/MODIFIED", "u13/13/ADDED", "u13/15/DELETED"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory() // 11 and 12
			l := live(t, server, m, []string{"p"}, filtering("abc"))
			l.watching(12)
			l.snapshotsDone()
			l.capture()
			server.Write("c", false) // 13
			server.Write("a", false) // 14
			l.watching(14)
			if tt.clean {
				l.stop()
			} else {
				l.crash()
			}
			for id, text := range m.meta {
				if tt.older {
					m.meta[id] = bytes.Replace(text, []byte(`"filters"`), []byte(`"unknown"`), 1)
				}
			}
			server.Away(func() { server.Write("c", true) }) // 15
			for range 2 {                                   // the first is killed before its first commit
				l = live(t, server, m.clone(), []string{"p"}, filtering(tt.filter))
				l.expectSet("p", tt.want...)
				if gaps := l.gapRecords(); len(gaps) > 0 && (!gaps[0].Unclean || gaps[0].Reason != killedAndEdited) {
					t.Errorf("got %+v", gaps[0])
				}
				for _, d := range l.deltas {
					if gaps := l.gapRecords(); len(gaps) > 0 && (sequence(d) < 15 || d.SnapshotID == "") {
						t.Errorf("%s comes with the sequence %d and the transport id %q, and the last run may have sent 15", shortID(d), sequence(d), d.SnapshotID)
					}
				}
				l.crash()
			}
		})
	}
}

// A snapshot of what edited filters let pass again comes behind the DELETED of when they did not, though it is of the same version.
func TestSequenceOfWhatPassesAgain(t *testing.T) {
	for _, name := range []string{"on demand", "removed and added"} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory() // 11 and 12
			l := live(t, server, m, []string{"p"}, filtering("ab"))
			l.watching(12)
			l.snapshotsDone()
			l.stop()
			server.Write("b", false) // 13
			l = live(t, server, m, []string{"p"}, filtering("a"))
			l.expect("p", "u12/13/DELETED")
			left := l.delta("u12/13/DELETED")
			l.stop()
			if name != "on demand" {
				l = live(t, server, m, []string{"other"}, nil)
				l.watching(13)
				l.stop()
			}
			l = live(t, server, m, []string{"p"}, filtering("ab"))
			if name == "on demand" {
				l.watching(13)
				if _, err := l.source.RequestSnapshot("p", "", false); err != nil {
					t.Fatal(err)
				}
			}
			l.expectSet("p", "u11/11/ADDED+s", "u12/13/ADDED+s")
			if back := l.delta("u12/13/ADDED+s"); !after(back, sequence(left)) {
				t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
			}
			server.Write("b", false) // 14
			l.expectSet("p", "u11/11/ADDED+s", "u12/13/ADDED+s", "u12/14/MODIFIED")
			if next, back := l.delta("u12/14/MODIFIED"), l.delta("u12/13/ADDED+s"); !after(next, sequence(back)) {
				t.Errorf("got the sequences %d and %d", sequence(back), sequence(next))
			}
		})
	}
}

// What a killed run took out in a gap comes back behind that, if the filters are edited before the gap is closed.
func TestSequenceOfWhatPassesInTheSameGap(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	older := func(passes bool) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Filters, l.onLeave = []string{fmt.Sprint(passes)}, true
			l.passes = func(_ string, object *delta.Object) bool { return passes || object.ResourceVersion() == "11" }
		}
	}
	l := live(t, server, m, []string{"p"}, older(false))
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	for range 3 {
		server.Write("a", false) // 12 to 14
	}
	server.Compact() // 15
	l = live(t, server, m, []string{"p"}, older(false))
	l.expect("p", "gap 11-15", "u11/14/DELETED+i")
	left := l.delta("u11/14/DELETED+i")
	l.crash()
	l = live(t, server, m, []string{"p"}, older(true))
	l.expect("p", "gap 11-15", "u11/14/MODIFIED+i")
	if back := l.delta("u11/14/MODIFIED+i"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// So does one for a pipeline that moves to a source whose watch of the namespace stays, and goes on with its own objects only.
func TestSequenceOfWhatPassesInAnotherSource(t *testing.T) {
	server, m := things(t, "red/a"), newMemory() // 11
	source := func(name, filter string, include ...string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Name, o.Namespaces.Include, l.onLeave = name, include, true
			for range l.names {
				o.Filters = append(o.Filters, filter)
			}
			l.passes = func(_ string, object *delta.Object) bool { return filter == "all" || object.ResourceVersion() == "11" }
		}
	}
	l := live(t, server, m, []string{"q"}, source("first", "older", "red"))
	l.expect("q", "u11/11/ADDED+s")
	server.Write("red/a", false) // 12
	l.expect("q", "u11/11/ADDED+s", "u11/12/DELETED")
	left := l.delta("u11/12/DELETED")
	l.stop()
	l = live(t, server, m, []string{"p"}, source("second", "all", "red"))
	l.expect("p", "u11/12/ADDED+s")
	l.stop()
	l = live(t, server, m, []string{"p", "q"}, source("second", "all", "blue", "red"))
	l.expect("q", "u11/12/ADDED+s")
	if back := l.delta("u11/12/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// A run killed in its first state has sent some of it, and the pipeline takes from a source that sends no snapshots now.
func TestKilledInItsFirstStateAndNeverASnapshot(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, nil)
	l.expect("p", "u11/11/ADDED+s")
	l.crash()
	server.Write("a", true) // 12
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Name, o.Snapshot = "silent", delta.SnapshotNever })
	l.expect("p", "gap -12")
	l.watching(12)
	l.stop()
	m.forget(l.source)
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Name, o.Snapshot = "silent", delta.SnapshotNever })
	l.watching(12)
	l.expect("p")
}

// Sequences that a killed run raised are not in its last commit. What the next one takes out comes behind them all the same.
func TestRaisedSequencesOfAKilledRun(t *testing.T) {
	server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
	l := live(t, server, m, []string{"p"}, selecting("*"))
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"p"}, selecting("shop*"))
	l.expect("p", "u12/12/DELETED+i+left")
	server.Write("shop/a", false) // 13
	server.Write("shop/a", false) // 14
	l.watching(14)
	last := l.delta("u11/14/MODIFIED")
	l.crash()
	if sequence(last) <= 14 {
		t.Fatalf("the sequence %d was not raised", sequence(last))
	}
	l = live(t, server, m, []string{"p"}, selecting("team*"))
	l.expectSet("p", "gap 12-14", "u11/11/DELETED+i+left", "u12/12/ADDED+s")
	if out := l.delta("u11/11/DELETED+i+left"); !after(out, sequence(last)) {
		t.Errorf("the DELETED has the sequence %d, and what the killed run sent %d", sequence(out), sequence(last))
	}
}

// A replica takes over with a copy from before two leaders, or with none. Each of these was killed after it had sent changes with raised
// sequences, and its Lease had named them.
func TestGoesOnBehindRaisedSequencesThatItsStateLacks(t *testing.T) {
	for name, outdated := range map[string]bool{"an older copy": true, "an empty state": false} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
			l := live(t, server, m, []string{"p"}, selecting("*"))
			l.watching(12)
			l.snapshotsDone()
			l.stop()
			l = live(t, server, m, []string{"p"}, selecting("shop*"))
			l.expect("p", "u12/12/DELETED+i+left")
			l.watching(12)
			l.crash()
			state := newMemory()
			if outdated {
				m.mu.Lock()
				state = m.clone()
				m.mu.Unlock()
			}
			named, last := uint64(0), uint64(0)
			for n := 13; n < 15; n++ {
				l = live(t, server, m, []string{"p"}, selecting("shop*"))
				l.Exclusive(func() { named = l.source.Raised() })
				server.Write("shop/a", false)
				l.watching(n)
				last = sequence(l.delta(fmt.Sprintf("u11/%d/MODIFIED", n)))
				l.crash()
			}
			if last < named || named < maxRaised {
				t.Fatalf("the Lease named %d, and %d was sent: not raised", named, last)
			}
			state.clean, state.floor = false, named
			l = live(t, server, state, []string{"p"}, selecting("shop*"))
			l.watching(14)
			server.Write("shop/a", false) // 15
			l.watching(15)
			if next := l.delta("u11/15/MODIFIED"); !after(next, last) {
				t.Errorf("the last leader sent the sequence %d, and this one %d", last, sequence(next))
			}
		})
	}
}

// Also where the killed run only added something, or went on behind a gap record for an edit.
func TestSequencesOfAnEditAreCommittedFirst(t *testing.T) {
	for name, filters := range map[string][]string{"more selected": nil, "filters, after a kill": {"else"}} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
			first, next := selecting("shop*"), selecting("*")
			if filters != nil {
				first, next = nil, func(o *Options, _ *life) { o.Filters = filters }
			}
			l := live(t, server, m, []string{"p"}, first)
			l.watching(12)
			l.snapshotsDone()
			l.stop()
			m.clean = filters == nil
			server.Write("team/b", false) // 13
			l = live(t, server, m, []string{"p"}, next)
			l.watching(13)
			l.crash()
			server.Write("shop/a", false) // 14
			if meta := m.only(t); meta.Edited <= 12 {
				t.Errorf("the commit has %+v", meta)
			}
		})
	}
}

// A resource that no source takes any more may come back, and with it what an edit took out before.
func TestSequencesOfAResourceThatComesBack(t *testing.T) {
	server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
	gadgets := func(o *Options, _ *life) { o.Resources = []schema.GroupVersionResource{sourcetest.Gadgets} }
	l := live(t, server, m, []string{"p"}, selecting("*"))
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	server.Write("shop/a", false) // 13
	l = live(t, server, m, []string{"p"}, selecting("shop*"))
	l.expectSet("p", "u11/13/MODIFIED", "u12/12/DELETED+i+left")
	out := l.delta("u12/12/DELETED+i+left")
	l.stop()
	for range 2 {
		l = live(t, server, m, []string{"p"}, gadgets)
		l.watching(13)
		l.stop()
		m.forget(l.source)
	}
	l = live(t, server, m, []string{"p"}, selecting("*"))
	l.expectSet("p", "u11/13/ADDED+s", "u12/12/ADDED+s")
	if in := l.delta("u12/12/ADDED+s"); !after(in, sequence(out)) {
		t.Errorf("the DELETED has the sequence %d, and what comes back %d", sequence(out), sequence(in))
	}
	l.snapshotsDone()
	l.stop()
	m.forget(l.source)
	if meta := m.only(t); len(meta.Former) != 1 || meta.Former["v1/gadgets"] == 0 {
		t.Errorf("got %+v", meta)
	}
}

// A run that is killed behind the DELETED of what an edit left out has not committed it. If the next edit selects the objects again, they
// are sent again; else their DELETED is.
func TestKilledBehindWhatAnEditLeftOut(t *testing.T) {
	for name, tt := range map[string]struct {
		before, less, after string
		want                []string
	}{
		"back":                   {"*", "sho*", "*", []string{"gap 12-12", "u12/12/ADDED+s"}},
		"back to two watches":    {"shop team", "shop", "shop team", []string{"gap 12-12", "u12/12/ADDED+s"}},
		"back to another watch":  {"*", "shop", "*", []string{"gap 12-12", "u12/12/ADDED+s"}},
		"not edited again":       {"*", "sho*", "sho*", []string{"u12/12/DELETED+i+left"}},
		"another, that has less": {"*", "sho*", "sh*", []string{"gap 12-12", "u12/12/DELETED+i+left"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
			including := func(include string) func(*Options, *life) {
				return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: strings.Fields(include)} }
			}
			l := live(t, server, m, []string{"p"}, including(tt.before))
			l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s")
			l.snapshotsDone()
			l.stop()
			for range 2 {
				l = live(t, server, m, []string{"p"}, including(tt.less))
				l.expect("p", "u12/12/DELETED+i+left")
				l.crash()
				m.forget(l.source)
			}
			out := l.delta("u12/12/DELETED+i+left")
			l = live(t, server, m, []string{"p"}, including(tt.after))
			l.expectSet("p", tt.want...)
			l.stop()
			if in := l.delta("u12/12/ADDED+s"); in != nil && !after(in, sequence(out)) {
				t.Errorf("got %v and then %v", out, in)
			}
		})
	}
}

// A watch that goes on with several, of which one was killed in its first state, begins behind a gap record.
func TestOneOfSeveralWasKilledInItsFirstState(t *testing.T) {
	for _, killed := range []string{"a", "b"} {
		t.Run(killed, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b"), newMemory() // 11 and 12
			m.run(t, server, func(func() map[string]string) {}, configured{"a", "p", "sho*"}, configured{"b", "q", "tea*"})
			for id, text := range m.meta { // neither has a position
				var meta Meta
				if err := json.Unmarshal(text, &meta); err != nil {
					t.Fatal(err)
				}
				meta.Position, meta.Complete, meta.Begun = "", false, meta.Source == killed
				m.meta[id], _ = json.Marshal(meta)
				clear(m.known[id])
			}
			m.clean = false
			m.run(t, server, func(got func() map[string]string) {
				for name, text := range got() {
					if !strings.Contains(text, "gap -12") {
						t.Errorf("%s got no gap: %s", name, text)
					}
				}
			}, configured{"c", "p q", "*"})
		})
	}
}

// An object that was made anew in a gap has an inferred DELETED and ADDED in one state. The ADDED has the higher sequence, also while
// sequences are raised.
func TestSequencesOfWhatWasMadeAnewInAGap(t *testing.T) {
	for name, filter := range map[string]string{"filters edited": "b", "not edited": "ab"} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory() // 11 and 12
			l := live(t, server, m, []string{"p"}, filtering("ab"))
			l.watching(12)
			l.snapshotsDone()
			l.capture()
			server.Write("a", false) // 13
			l.watching(13)
			l.crash()
			server.Away(func() {
				server.Write("b", true)  // 14
				server.Write("b", false) // 15
				server.Write("a", false) // 16
				server.Compact()         // 17
			})
			l = live(t, server, m, []string{"p"}, filtering(filter))
			ofA := map[string]string{"b": "u11/16/DELETED+i", "ab": "u11/16/MODIFIED+i"}[filter]
			l.expectSet("p", "gap 12-17", ofA, "u12/12/DELETED+i", "u15/15/ADDED+i")
			gone, anew := l.delta("u12/12/DELETED+i"), l.delta("u15/15/ADDED+i")
			if !after(anew, sequence(gone)) {
				t.Errorf("the DELETED has the sequence %d, and the ADDED behind it %d", sequence(gone), sequence(anew))
			}
		})
	}
}

// A pipeline moves to a source without its selectors, of which another watch is the heir: what left the selection (as a DELETED of the
// server, for which a filter stands here) comes back in the same version.
func TestSequenceOfWhatPassesInAnotherSelection(t *testing.T) {
	server, m := things(t, "red/a"), newMemory() // 11
	source := func(name, selection string, include ...string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Name, o.Namespaces.Include, l.onLeave = name, include, true
			for range l.names {
				o.Filters = append(o.Filters, "same")
			}
			l.passes = func(_ string, object *delta.Object) bool {
				return selection == "all" || object.ResourceVersion() == "11"
			}
		}
	}
	l := live(t, server, m, []string{"q"}, source("first", "older", "red"))
	l.expect("q", "u11/11/ADDED+s")
	l.watching(11)
	l.snapshotsDone()
	server.Write("red/a", false) // 12
	l.expect("q", "u11/11/ADDED+s", "u11/12/DELETED")
	left := l.delta("u11/12/DELETED")
	l.stop()
	l = live(t, server, m, []string{"p"}, source("second", "all", "blue", "red")) // of the same run
	l.expect("p", "u11/12/ADDED+s")
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"p", "q"}, source("second", "all", "blue", "red"))
	eventually(t, func() string {
		if got := l.sorted("q"); !slices.Contains(got, "u11/12/ADDED+s") {
			return fmt.Sprint(got)
		}
		return ""
	})
	if back := l.delta("u11/12/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// A run is killed behind its first state, before that is committed, and the filters are edited.
func TestSequenceOfWhatPassesAfterAKillInTheFirstState(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	older := func(passes bool) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Filters, l.onLeave = []string{fmt.Sprint(passes)}, true
			l.passes = func(_ string, object *delta.Object) bool { return passes || object.ResourceVersion() == "11" }
		}
	}
	l := live(t, server, m, []string{"p"}, older(false))
	l.watching(11)
	server.Write("a", false) // 12
	l.expect("p", "u11/11/ADDED+s", "u11/12/DELETED")
	left := l.delta("u11/12/DELETED")
	l.crash()
	l = live(t, server, m, []string{"p"}, older(true))
	l.expect("p", "gap -12", "u11/12/ADDED+s")
	if back := l.delta("u11/12/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// As TestSequenceOfWhatPassesInAnotherSource, but the run that sent the DELETED was killed before it committed that.
func TestSequenceOfWhatPassesInAnotherSourceAfterAKill(t *testing.T) {
	server, m := things(t, "red/a"), newMemory() // 11
	source := func(name, filter string, include ...string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Name, o.Namespaces.Include, l.onLeave = name, include, true
			for range l.names {
				o.Filters = append(o.Filters, filter)
			}
			l.passes = func(_ string, object *delta.Object) bool { return filter == "all" || object.ResourceVersion() == "11" }
		}
	}
	l := live(t, server, m, []string{"q"}, source("first", "older", "red"))
	l.expect("q", "u11/11/ADDED+s")
	l.watching(11)
	l.snapshotsDone()
	l.capture()
	server.Write("red/a", false) // 12
	l.expect("q", "u11/11/ADDED+s", "u11/12/DELETED")
	left := l.delta("u11/12/DELETED")
	l.crash()
	l = live(t, server, m, []string{"p"}, source("second", "all", "red")) // of the same run, and faster
	l.expect("p", "u11/12/ADDED+s")
	l.watching(12)
	l.snapshotsDone()
	l.capture()
	l.crash()
	l = live(t, server, m, []string{"p", "q"}, source("second", "all", "blue", "red"))
	eventually(t, func() string {
		if got := l.sorted("q"); !slices.Contains(got, "u11/12/ADDED+s") {
			return fmt.Sprint(got)
		}
		return ""
	})
	if back := l.delta("u11/12/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// A reading that an edit began is interrupted, and the resource is gone.
func TestGoneWithinAnEdit(t *testing.T) {
	server, m := things(t, "shop/a"), newMemory() // 11
	including := func(include ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces.Include = include }
	}
	l := live(t, server, m, []string{"p"}, including("sho*"))
	l.watching(11)
	l.snapshotsDone()
	server.Write("team/b", false) // 12
	for n := range 3 {
		server.Write(fmt.Sprint("zoo/c", n), false) // 13 to 15
	}
	l.watching(15)
	l.stop()
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		// the second page of the state
		if !isWatch(r) && r.URL.Query().Get("continue") != "" {
			server.SetMissing(true)
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}
		return false
	})
	l = live(t, front, m, []string{"p"}, including("sho*", "tea*"))
	eventually(t, func() string {
		if s := l.source.Status()[0]; s.State != StateMissing {
			return fmt.Sprintf("got %+v %v", s, l.sorted("p"))
		}
		return ""
	})
	in, out := l.delta("u12/12/ADDED+s"), l.delta("u12/12/DELETED+i")
	if in == nil || out == nil {
		t.Fatal("not sent")
	}
	if sequence(out) < sequence(in) {
		t.Errorf("the ADDED has the sequence %d, and the DELETED behind it %d", sequence(in), sequence(out))
	}
}

// A killed run sent a DELETED that it did not commit. The resource, or the pipeline, is removed from the file, and comes back under other
// filters: what passes now is behind that.
func TestComesBackBehindWhatAKilledRunSent(t *testing.T) {
	for _, other := range []string{"another resource", "another pipeline"} {
		t.Run(other, func(t *testing.T) {
			server, m := things(t, "a"), newMemory() // 11
			of := func(filter string) func(*Options, *life) {
				return func(o *Options, l *life) {
					for _, name := range l.names {
						if name == "q" {
							o.Filters = append(o.Filters, "q")
						} else {
							o.Filters = append(o.Filters, filter)
						}
					}
					l.onLeave = true
					l.passes = func(p string, o *delta.Object) bool {
						return p == "q" || filter == "all" || o.ResourceVersion() == "11"
					}
				}
			}
			names := []string{"q", "p"}
			l := live(t, server, m, names, of("older"))
			l.watching(11)
			l.snapshotsDone()
			l.capture()
			server.Write("gadgets:x", false) // 12
			server.Write("gadgets:x", false) // 13
			server.Write("a", false)         // 14 does not pass
			l.expect("p", "u11/11/ADDED+s", "u11/14/DELETED")
			left := l.delta("u11/14/DELETED")
			l.crash()
			if other == "another resource" {
				l = live(t, server, m, names, func(o *Options, _ *life) { o.Resources[0] = sourcetest.Gadgets })
				l.watching(14)
			} else {
				server.SetSilent(true) // it is stopped before it has caught up
				l = live(t, server, m, []string{"q"}, of("older"))
				l.watching(11)
			}
			l.stop()
			m.forget(l.source)
			server.SetSilent(false)
			l = live(t, server, m, names, of("all"))
			eventually(t, func() string {
				if !slices.Contains(l.sorted("p"), "u11/14/ADDED+s") {
					return fmt.Sprint(l.sorted("p"), l.gapRecords())
				}
				return ""
			})
			l.snapshotsDone()
			if back := l.delta("u11/14/ADDED+s"); !after(back, sequence(left)) {
				t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
			}
		})
	}
}

// As TestSequenceOfWhatPassesInAnotherSourceAfterAKill, with a run between that stops well before it has caught up.
func TestMovesBehindAKillAndAStop(t *testing.T) {
	server, m := things(t, "red/a"), newMemory() // 11
	source := func(name, filter string, include ...string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Name, o.Namespaces.Include, l.onLeave = name, include, true
			for range l.names {
				o.Filters = append(o.Filters, filter)
			}
			l.passes = func(_ string, object *delta.Object) bool { return filter == "all" || object.ResourceVersion() == "11" }
		}
	}
	first, second := m, newMemory()
	l := live(t, server, first, []string{"q"}, source("first", "older", "red"))
	l.expect("q", "u11/11/ADDED+s")
	l.watching(11)
	l.snapshotsDone()
	l.capture()
	server.Write("red/a", false) // 12
	l.expect("q", "u11/11/ADDED+s", "u11/12/DELETED")
	left := l.delta("u11/12/DELETED")
	l.crash()
	server.SetSilent(true)
	l = live(t, server, first, []string{"q"}, source("first", "older", "red"))
	l.watching(11)
	l.stop() // well
	server.SetSilent(false)
	l = live(t, server, second, []string{"p"}, source("second", "all", "red")) // of the same run
	l.expect("p", "u11/12/ADDED+s")
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	for id := range second.meta {
		first.meta[id], first.known[id] = second.meta[id], second.known[id]
	}
	l = live(t, server, first, []string{"p", "q"}, source("second", "all", "blue", "red"))
	eventually(t, func() string {
		if got := l.sorted("q"); !slices.Contains(got, "u11/12/ADDED+s") {
			return fmt.Sprint(got)
		}
		return ""
	})
	if back := l.delta("u11/12/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// A run is stopped well in the midst of the state behind a gap; the resource is removed, and comes back under other filters.
func TestComesBackBehindAStateThatWasNotComplete(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	of := func(filter string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Filters, l.onLeave = []string{filter}, true
			l.passes = func(_ string, o *delta.Object) bool {
				return filter == "all" || versionNumber(o.ResourceVersion()) < 13
			}
		}
	}
	l := live(t, server, m, []string{"p"}, of("older"))
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	server.Write("b", false) // 13
	server.Write("a", false) // 14
	server.Compact()         // 15
	l = live(t, server, m, []string{"p"}, func(o *Options, l *life) { of("older")(o, l); l.after = 1 })
	l.expect("p", "gap 12-15", "u11/14/DELETED+i")
	left := l.delta("u11/14/DELETED+i")
	l.stop()
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Resources[0] = sourcetest.Gadgets })
	l.watching(15)
	l.stop()
	m.forget(l.source)
	l = live(t, server, m, []string{"p"}, of("all"))
	l.expectSet("p", "u11/14/ADDED+s", "u12/13/ADDED+s")
	if back := l.delta("u11/14/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// countingStore counts the known objects that are read.
type countingStore struct {
	*memory
	read *int
}

func (s countingStore) Known(id string, yield func(delta.Known)) error {
	return s.memory.Known(id, func(k delta.Known) { *s.read++; yield(k) })
}

// Edited filters have each known set read twice, however many there are.
func TestKnownSetsReadAfterAnEdit(t *testing.T) {
	server, m := things(t), newMemory()
	var include []string
	for n := range 20 {
		include = append(include, fmt.Sprint("n", n))
		server.Write(fmt.Sprint("n", n, "/a"), false)
	}
	filtering := func(filter string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces.Include, o.Filters = include, []string{filter} }
	}
	l := live(t, server, m, []string{"p"}, filtering("one"))
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) < len(include) {
			return fmt.Sprint(got)
		}
		return ""
	})
	l.snapshotsDone()
	l.stop()
	options, read := l.source.options, 0
	filtering("two")(&options, nil)
	if _, err := Restore(countingStore{m, &read}, New(l.source.client, options, l, NewMetrics(prometheus.NewRegistry()), l.logger)); err != nil {
		t.Fatal(err)
	}
	if read != 2*len(include) {
		t.Errorf("%d known objects were read, want each of %d twice", read, len(include))
	}
}

// As TestComesBackBehindWhatAKilledRunSent, but the killed run was in a gap of more than maxRaised resource versions.
func TestComesBackBehindAFarGap(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	of := func(filter string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Filters, l.onLeave = []string{filter}, true
			l.passes = func(_ string, o *delta.Object) bool { return filter == "all" || o.ResourceVersion() == "11" }
		}
	}
	l := live(t, server, m, []string{"p"}, of("older"))
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	server.RollBack(3_000_000)
	server.Write("a", false) // 3000001 does not pass
	server.Compact()
	l = live(t, server, m, []string{"p"}, of("older"))
	eventually(t, func() string {
		if !slices.Contains(l.sorted("p"), "u11/3000001/DELETED+i") {
			return fmt.Sprint(l.sorted("p"))
		}
		return ""
	})
	left := l.delta("u11/3000001/DELETED+i")
	l.crash()
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Resources[0] = sourcetest.Gadgets })
	l.watching(3000002)
	l.stop()
	m.forget(l.source)
	l = live(t, server, m, []string{"p"}, of("all"))
	l.expect("p", "u11/3000001/ADDED+s")
	if back := l.delta("u11/3000001/ADDED+s"); !after(back, sequence(left)) {
		t.Errorf("got the sequences %d and %d", sequence(left), sequence(back))
	}
}

// A run is killed in a gap of more than maxRaised resource versions, and the resource is gone: the DELETED is behind what it sent.
func TestGoneBehindAFarGap(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	server.RollBack(3_000_000)
	server.Write("a", false) // 3000001
	server.Compact()
	l = live(t, server, m, []string{"p"}, nil)
	eventually(t, func() string {
		if !slices.Contains(l.sorted("p"), "u11/3000001/MODIFIED+i") {
			return fmt.Sprint(l.sorted("p"))
		}
		return ""
	})
	sent := l.delta("u11/3000001/MODIFIED+i")
	l.crash()
	server.SetMissing(true)
	l = live(t, server, m, []string{"p"}, nil)
	eventually(t, func() string {
		if !slices.Contains(l.sorted("p"), "u11/11/DELETED+i") {
			return fmt.Sprint(l.sorted("p"))
		}
		return ""
	})
	if out := l.delta("u11/11/DELETED+i"); !after(out, sequence(sent)) {
		t.Errorf("got the sequences %d and %d", sequence(sent), sequence(out))
	}
}

// A leader without the commits of those before it may also lack the pipelines that they had, and never read a resource. What it
// begins later comes behind what filters took out then.
func TestBeginsBehindWhatIsLost(t *testing.T) {
	for name, between := range map[string]func(t *testing.T, server *sourcetest.Server, m *memory){
		"of another pipeline": func(t *testing.T, server *sourcetest.Server, m *memory) {
			l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Name, o.HistoryLost = "another", "lost" })
			l.stop() // nothing was read
		},
		"of a resource that was gone": func(t *testing.T, server *sourcetest.Server, m *memory) {
			server.SwitchOff(true)
			l := live(t, server, m, []string{"q"}, func(o *Options, _ *life) { o.HistoryLost = "lost" })
			l.reaches(StateMissing)
			l.stop()
			server.SwitchOff(false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/a"), newMemory() // 11
			even := func(_ string, o *delta.Object) bool { return versionNumber(o.ResourceVersion())%2 == 0 }
			l := live(t, server, m, []string{"q"}, func(_ *Options, l *life) { l.passes, l.onLeave = even, true })
			l.watching(11)
			server.Write("shop/a", false) // 12
			server.Write("shop/a", false) // 13
			l.expect("q", "u11/12/MODIFIED", "u11/13/DELETED")
			l.stop()
			m = newMemory()
			m.floor = 1
			between(t, server, m)
			l = live(t, server, m, []string{"q"}, nil)
			l.watching(13)
			if added := l.delta("u11/13/ADDED+s"); sequence(added) <= 13 {
				t.Errorf("the sequence is %d", sequence(added))
			}
		})
	}
}
