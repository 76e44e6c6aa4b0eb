package source

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// TestEditModel edits a configuration at random, between changes of objects, stops and kills. A run may end before it has read what an
// edit requires, or amid that, and the next one may go on with a standby's copy; or with an older run's state, or with none, and what the
// Lease names. The API may go, and come back. Whatever the edits were, each pipeline with `onLeave: deleted` ends with exactly the objects
// that its source selects (docs/operations.md), as far as it has no gap record that says otherwise.
func TestEditModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &editWorld{t: t, server: sourcetest.New(rt), memory: newMemory(), consumers: map[string]*editConsumer{}}
		for range rapid.IntRange(2, 6).Draw(rt, "runs") {
			w.change(rt)
			w.edit(rt)
			w.run(rt)
		}
	})
}

// editWorld is a cluster, what the state directory holds, and what consumers have.
type editWorld struct {
	t         *testing.T
	server    *sourcetest.Server
	memory    *memory
	sources   []configured
	consumers map[string]*editConsumer // by pipeline
	filters   map[string]string        // by pipeline, as editFilters has them
	off       bool                     // the API is
	older     []*memory                // what earlier runs began and ended with
	ended     uint64                   // the server's version when the last run ended
}

// editFilters are the filters that a pipeline may have.
var editFilters = map[string]func(*delta.Object) bool{
	"all":  func(*delta.Object) bool { return true },
	"a":    func(o *delta.Object) bool { return o.Name() == "a" },
	"even": func(o *delta.Object) bool { return versionNumber(o.ResourceVersion())%2 == 0 },
}

func (w *editWorld) change(rt *rapid.T) {
	for range rapid.IntRange(0, 4).Draw(rt, "changes") {
		name := rapid.SampledFrom([]string{"red", "blue", "green"}).Draw(rt, "namespace") + "/" + rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "name")
		w.server.Write(name, rapid.Bool().Draw(rt, "deleted"))
	}
	if rapid.IntRange(0, 3).Draw(rt, "compact") == 0 {
		w.server.Compact()
	}
}

// edit draws a configuration, perhaps the same as before.
func (w *editWorld) edit(rt *rapid.T) {
	if w.sources != nil && rapid.Bool().Draw(rt, "no edit") {
		return
	}
	w.filters = map[string]string{}
	for _, pipeline := range []string{"p", "q"} {
		w.filters[pipeline] = rapid.SampledFrom([]string{"all", "all", "a", "even"}).Draw(rt, "filter")
	}
	if w.sources != nil && rapid.Bool().Draw(rt, "only filters") {
		return
	}
	include := rapid.SampledFrom([]string{"red", "red blue", "red green", "re* bl*", "re*", "*"})
	pipelines := rapid.SampledFrom([][]string{{"p q"}, {"p", "q"}, {"p"}, {"q"}, {"q", "p"}}).Draw(rt, "pipelines")
	w.sources = nil
	for n, names := range pipelines {
		name := []string{"s", "t"}[n] + rapid.SampledFrom([]string{"", "-renamed"}).Draw(rt, "source")
		w.sources = append(w.sources, configured{name, names, include.Draw(rt, "include")})
	}
}

// run starts the sources, changes objects, checks what the consumers have, and stops or kills.
func (w *editWorld) run(rt *rapid.T) {
	client, err := NewClient(&rest.Config{Host: w.server.URL}, false)
	if err != nil {
		rt.Fatal(err)
	}
	raised := w.memory.raised
	if copies := w.memory.copies; len(copies) > 0 && rapid.IntRange(0, 2).Draw(rt, "leader lost") == 0 {
		w.memory = rapid.SampledFrom(copies).Draw(rt, "copy")
		w.memory.clean = false
	}
	lost := ""
	if len(w.older) > 0 && rapid.IntRange(0, 4).Draw(rt, "state lost") == 0 {
		lost, w.memory = "all newer states are lost", newMemory()
		if rapid.Bool().Draw(rt, "an older one is left") {
			w.memory = rapid.SampledFrom(w.older).Draw(rt, "older").clone()
		}
		w.memory.clean, w.memory.floor = false, max(w.memory.floor, raised+1)
	}
	w.memory.copies, w.memory.raised = nil, raised
	w.older = append(w.older, w.memory.clone())
	var lives []*life
	var sources []*Source
	for _, s := range w.sources {
		l := &life{t: w.t, memory: w.memory, names: strings.Fields(s.pipelines), got: map[string][]string{}, deltas: map[string]*delta.Delta{}, sent: map[string][]*delta.Delta{}, onLeave: true}
		l.passes = func(pipeline string, object *delta.Object) bool { return editFilters[w.filters[pipeline]](object) }
		var filters []string
		for _, name := range l.names {
			filters = append(filters, w.filters[name])
		}
		l.source = New(client, Options{
			Name: s.name, Resources: []schema.GroupVersionResource{sourcetest.Things}, absence: absenceRule{answers: 1}, Snapshot: delta.SnapshotInitial, Pipelines: l.names, Filters: filters,
			Namespaces: delta.Namespaces{Include: strings.Fields(s.include)}, HistoryLost: lost,
			Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 1000, Factor: 1},
		}, l, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		lives, sources = append(lives, l), append(sources, l.source)
	}
	if _, err := Restore(w.memory, sources...); err != nil {
		rt.Fatal(err)
	}
	w.memory.clean = false
	w.commit(lives) // the first of a run, which drops the watches of the last
	for id := range w.memory.meta {
		if !slices.ContainsFunc(sources, func(s *Source) bool { return slices.Contains(s.WatchIDs(), id) }) {
			delete(w.memory.meta, id)
			delete(w.memory.known, id)
		}
	}
	w.memory.copies = nil
	w.switchOff(rapid.IntRange(0, 9).Draw(rt, "off") == 0)
	settled, stopsAfter := rapid.Bool().Draw(rt, "settled"), 0 // at 0 deltas of a source it stops before anything is read
	if !settled {
		stopsAfter = rapid.IntRange(0, 3).Draw(rt, "stops after")
	}
	if settled || stopsAfter > 0 {
		w.live(rt, lives, stopsAfter)
	}
	if !rapid.Bool().Draw(rt, "kill") {
		w.commit(lives)
		w.memory.clean = true
	}
	for name, c := range w.consumers {
		if !slices.ContainsFunc(lives, func(l *life) bool { return slices.Contains(l.names, name) }) {
			c.doubt() // nothing is known of what it has
			c.away = true
		}
	}
	for n, l := range lives {
		for _, name := range l.names {
			c, ok := w.consumers[name]
			if !ok {
				c = &editConsumer{has: map[string]uint64{}, highest: map[string]uint64{}, deleted: map[string]bool{}, ids: map[string]bool{}, marked: map[string]map[string]bool{}}
				w.consumers[name] = c
			}
			if c.filter != w.filters[name] {
				c.filter, c.filtered = w.filters[name], w.ended
			}
			if c.away {
				c.away, c.filtered = false, 0
			}
			if lost != "" {
				c.lost, c.announced = w.ended, false
			}
			c.read(rt, name, l)
			if settled {
				state := w.server.State(sourcetest.Things)
				if w.off {
					state = nil
				}
				c.check(rt, name, delta.Namespaces{Include: strings.Fields(w.sources[n].include)}, state)
			}
		}
	}
	w.ended = uint64(w.server.Version())
	w.older = append(w.older, w.memory.clone())
}

// live runs the sources until they have sent everything, or each until so many deltas, unless that is 0.
func (w *editWorld) live(rt *rapid.T, lives []*life, stopsAfter int) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	defer func() {
		cancel()
		running.Wait()
	}()
	for _, l := range lives {
		l.after = stopsAfter
		running.Go(func() { l.source.Run(ctx) })
	}
	w.await(rt, lives)
	if !w.off && rapid.IntRange(0, 9).Draw(rt, "goes for a moment") == 0 {
		for _, off := range []bool{true, false} {
			if rapid.Bool().Draw(rt, "commit") {
				w.commit(lives)
			}
			w.switchOff(off)
			w.await(rt, lives)
		}
	}
	if stopsAfter == 0 {
		w.commit(lives)
		w.change(rt)
		w.await(rt, lives)
	}
}

func (w *editWorld) commit(lives []*life) {
	for _, l := range lives {
		l.capture()
	}
	w.memory.copy()
}

func (w *editWorld) switchOff(off bool) {
	w.off = off
	w.server.SwitchOff(off)
}

// await waits until the sources have sent everything, or are where they stop.
func (w *editWorld) await(rt *rapid.T, lives []*life) {
	missing := func() string {
		for _, l := range lives {
			if l.blocked() {
				continue
			}
			if w.off {
				if l.source.gone() {
					continue
				}
				return "it is not gone yet"
			}
			for _, s := range l.source.Status() {
				if s.State != StateWatching || versionNumber(s.Position) < w.last(s.Namespace) {
					return fmt.Sprintf("%+v", s)
				}
			}
			for _, one := range l.source.watches {
				if len(one.meta().Snapshots) > 0 {
					return "a snapshot"
				}
			}
		}
		return ""
	}
	for deadline := time.Now().Add(30 * time.Second); missing() != ""; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			rt.Fatalf("at %d: %s", w.server.Version(), missing())
		}
	}
}

// gone reports whether nothing is left of a resource that is gone.
func (s *Source) gone() bool {
	return !slices.ContainsFunc(s.watches, func(w *watcher) (left bool) {
		w.handler.Exclusive(func() { left = w.known().len() > 0 || w.state.Position != "" })
		return left || w.health.status().State != StateMissing
	})
}

// blocked reports whether a delta waits at the place where the life stops.
func (l *life) blocked() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.after > 0 && l.handed > l.after
}

// last is the version of the last change in a namespace; empty is for all.
func (w *editWorld) last(namespace string) (version uint64) {
	for _, c := range w.server.History() {
		if namespace == "" || c.Namespace == namespace {
			version = uint64(c.Version)
		}
	}
	return version
}

// meta is what the next commit writes.
func (w *watcher) meta() (meta Meta) {
	w.handler.Exclusive(func() { meta = w.state.meta() })
	return meta
}

// editConsumer keeps, for each object, what has the highest sequence, as docs/consumers.md says.
type editConsumer struct {
	away      bool              // its pipeline was removed
	has       map[string]uint64 // the version of each object
	highest   map[string]uint64 // the sequence
	deleted   map[string]bool   // that one was a DELETED
	ids       map[string]bool
	filter    string                     // of its pipeline
	filtered  uint64                     // the version up to which all was seen when that was edited
	unclean   bool                       // there was an unclean gap in this run
	marked    map[string]map[string]bool // what came since the first mark of a snapshot
	lost      uint64                     // the version up to which all was seen when the states of leaders were lost
	announced bool                       // there was an unclean gap since
	doubtful  map[string]bool            // what it had at a gap, or when its pipeline was removed, and did not get since
}

// read takes what a run sent.
func (c *editConsumer) read(rt *rapid.T, pipeline string, l *life) {
	gaps, marks := l.gaps, l.marks[pipeline]
	c.unclean = false
	for n, text := range append(slices.Clone(l.got[pipeline]), "") {
		for ; len(marks) > 0 && l.marked[pipeline][len(l.marks[pipeline])-len(marks)] == n; marks = marks[1:] {
			c.mark(marks[0])
		}
		if strings.HasPrefix(text, "gap") {
			if gaps[0].Unclean {
				c.doubt()
				c.unclean, c.announced = true, true
			}
			gaps = gaps[1:]
		} else if text != "" {
			c.take(rt, pipeline, text, l.sent[pipeline][n])
		}
	}
}

// doubt has the consumer doubt all that it has, until it gets that again.
func (c *editConsumer) doubt() {
	c.doubtful = map[string]bool{}
	for name := range c.has {
		c.doubtful[name] = true
	}
}

func (c *editConsumer) mark(m *delta.Mark) {
	if c.ids[m.ID("")] {
		return
	}
	c.ids[m.ID("")] = true
	if m.Incomplete {
		c.doubt()
		return
	}
	if m.Phase == delta.Started {
		c.marked[m.Snapshot] = map[string]bool{}
		return
	}
	maps.DeleteFunc(c.has, func(name string, _ uint64) bool {
		covered := m.Namespace == "" || strings.HasPrefix(name, m.Namespace+"/")
		return covered && !c.marked[m.Snapshot][name]
	})
}

func (c *editConsumer) take(rt *rapid.T, pipeline, text string, d *delta.Delta) {
	name := d.Object.Namespace() + "/" + d.Object.Name()
	for _, marked := range c.marked {
		marked[name] = true
	}
	at, again, deleted := sequence(d), c.ids[d.ID("")], d.Type == delta.Deleted
	c.ids[d.ID("")] = true
	if at < c.highest[name] || at == c.highest[name] && c.deleted[name] && !deleted {
		if !again && !(c.unclean && d.Inferred && deleted) { // that one may be sent again under another id
			rt.Fatalf("%s: %s has the sequence %d, and %s is at %d", pipeline, text, at, name, c.highest[name])
		}
		return
	}
	delete(c.doubtful, name)
	c.highest[name], c.deleted[name] = at, deleted
	if deleted {
		delete(c.has, name)
	} else {
		c.has[name] = versionNumber(d.Object.ResourceVersion())
	}
}

// check compares what the consumer has with what the source selects.
func (c *editConsumer) check(rt *rapid.T, pipeline string, selected delta.Namespaces, state map[string]sourcetest.Object) {
	passes := func(name string, object sourcetest.Object) bool {
		identity := delta.NewIdentity(schema.GroupVersionKind{}, object.Namespace, name[strings.Index(name, "/")+1:], "", fmt.Sprint(object.Version))
		return editFilters[c.filter](identity)
	}
	for name, object := range state {
		if c.announced && uint64(object.Version) <= c.lost { // a lost leader may have taken it out
			continue
		}
		if got := c.has[name]; selected.Match(object.Namespace) && passes(name, object) && got != uint64(object.Version) && uint64(object.Version) > c.filtered {
			rt.Errorf("%s has version %d of %s, want %d", pipeline, got, name, object.Version)
		}
	}
	for name := range c.has {
		object, exists := state[name]
		left := exists && (!selected.Match(object.Namespace) || !passes(name, object) && uint64(object.Version) > c.filtered)
		if !c.doubtful[name] && (!exists || left) {
			rt.Errorf("%s has %s, which exists: %v, and is not selected; no gap record says so", pipeline, name, exists)
		}
	}
}
