package source

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// memory is a store that outlives the lives of a watch.
type memory struct {
	mu     sync.Mutex // while several sources run
	meta   map[string][]byte
	known  map[string]map[string]delta.Known
	clean  bool
	floor  uint64
	raised uint64    // what the Lease names
	copies []*memory // what a standby may have; none from before a commit that waits for it

	pages, pagesFail int // how often KnownBehind was called, and how often it has to fail first
}

func newMemory() *memory {
	return &memory{meta: map[string][]byte{}, known: map[string]map[string]delta.Known{}, clean: true}
}

func (m *memory) clone() *memory {
	c := &memory{meta: maps.Clone(m.meta), known: map[string]map[string]delta.Known{}, clean: m.clean, floor: m.floor, raised: m.raised}
	for id, known := range m.known {
		c.known[id] = maps.Clone(known)
	}
	return c
}

// copy adds a copy of what is kept now.
func (m *memory) copy() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.copies = append(m.copies, m.clone())
}

func (m *memory) Clean() bool { return m.clean }

func (m *memory) Floor() uint64 { return m.floor }

func (m *memory) Watches(yield func(id string, meta []byte) error) error {
	for id, meta := range m.meta {
		if err := yield(id, meta); err != nil {
			return err
		}
	}
	return nil
}

// forget drops the watches that a source does not have, as the program does at its start.
func (m *memory) forget(s *Source) {
	for id := range m.meta {
		if !slices.Contains(s.WatchIDs(), id) {
			delete(m.meta, id)
			delete(m.known, id)
		}
	}
}

func (m *memory) Known(id string, yield func(delta.Known)) error {
	for _, k := range m.known[id] {
		k.Previous = nil
		yield(k)
	}
	return nil
}

// KnownBehind returns pages of two.
func (m *memory) KnownBehind(id string, after *delta.Known, limit int) (page []delta.Known, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pagesFail > 0 {
		m.pagesFail--
		return nil, errors.New("the disk returned an error")
	}
	m.pages++
	for _, key := range slices.Sorted(maps.Keys(m.known[id])) {
		if k := m.known[id][key]; len(page) < min(limit, 2) && (after == nil || key > after.Namespace+"/"+after.Name) {
			page = append(page, delta.Known{Namespace: k.Namespace, Name: k.Name})
		}
	}
	return page, nil
}

func (m *memory) Previous(id, namespace, name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.known[id][namespace+"/"+name].Previous, nil
}

func (m *memory) raise(sequence uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.raised = max(m.raised, sequence)
}

func (m *memory) commit(changes []delta.WatchChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range changes {
		m.meta[c.Watch] = c.Meta
		if m.known[c.Watch] == nil {
			m.known[c.Watch] = map[string]delta.Known{}
		}
		for _, k := range c.Put {
			key := k.Namespace + "/" + k.Name
			if k.Retained && k.Previous == nil { // it is there already
				k.Previous = m.known[c.Watch][key].Previous
			}
			m.known[c.Watch][key] = k
		}
		for _, k := range c.Remove {
			delete(m.known[c.Watch], k.Namespace+"/"+k.Name)
		}
	}
}

// only returns the meta of the one watch there is.
func (m *memory) only(t testing.TB) Meta {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	var meta Meta
	for _, text := range m.meta {
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
	}
	return meta
}

// edit changes what is kept of the watches of a namespace.
func (m *memory) edit(t testing.TB, namespace string, change func(*Meta)) {
	t.Helper()
	for id, text := range m.meta {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
		if meta.Namespace == namespace {
			change(&meta)
			m.meta[id], _ = json.Marshal(meta)
		}
	}
}

// unread is a run that may not read anything, and then stops.
func (m *memory) unread(t testing.TB, server *sourcetest.Server, adjust func(*Options, *life)) {
	t.Helper()
	server.Deny(http.StatusForbidden, math.MaxInt)
	l := live(t, server, m, []string{"p"}, adjust)
	l.expect("p")
	l.stop()
	m.forget(l.source)
	server.Deny(0, 0)
}

// life is one run of the process, with a source of things and its pipelines.
type life struct {
	t      testing.TB
	memory *memory
	source *Source
	names  []string
	end    func()

	commits  sync.RWMutex
	mu       sync.Mutex
	got      map[string][]string // by pipeline
	gaps     []*delta.Gap
	marks    map[string][]*delta.Mark  // by pipeline
	marked   map[string][]int          // how many records each had before it
	deltas   map[string]*delta.Delta   // by their texts
	sent     map[string][]*delta.Delta // as got, nil for a gap
	died     bool
	waiting  int           // records of snapshots that are not settled
	after    int           // blocks after that many deltas; 0 never does
	released chan struct{} // what is blocked goes on once it is closed
	handed   int
	room     map[string]int                                   // how many more snapshot records a pipeline has room for, below 0 not for a mark either; without an entry any number
	passes   func(pipeline string, object *delta.Object) bool // the pipelines' filters; nil pass everything
	onLeave  bool                                             // pipelines get only what passes, and a DELETED of what no longer does
	logger   *slog.Logger
	former   []string    // the watches of the last run of which records are not settled
	onGap    func()      // if set, called before each gap record
	waits    chan string // if set, gets the name of each pipeline without room whose Room is called
}

func live(t testing.TB, server *sourcetest.Server, m *memory, names []string, adjust func(*Options, *life)) *life {
	t.Helper()
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	options := Options{
		Name: "test", Resources: []schema.GroupVersionResource{sourcetest.Things}, absence: absenceRule{answers: 1}, Snapshot: delta.SnapshotInitial,
		Backoff:    wait.Backoff{Duration: time.Millisecond, Steps: 1000, Factor: 1},
		OnRollback: func(err error) { t.Errorf("rollback: %v", err) },
	}
	options.Pipelines = names
	l := &life{t: t, memory: m, names: names, got: map[string][]string{}, sent: map[string][]*delta.Delta{}, deltas: map[string]*delta.Delta{}, logger: slog.New(slog.DiscardHandler)}
	if adjust != nil {
		adjust(&options, l)
	}
	l.source = New(client, options, l, NewMetrics(prometheus.NewRegistry()), l.logger)
	if _, err := Restore(m, l.source); err != nil {
		t.Fatal(err)
	}
	m.clean = false
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.source.Run(ctx) })
	l.end = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(l.end)
	return l
}

func (l *life) Update(change func()) {
	l.commits.RLock()
	defer l.commits.RUnlock()
	change()
}

func (l *life) Exclusive(do func()) {
	l.commits.Lock()
	defer l.commits.Unlock()
	do()
}

func (l *life) Commit(context.Context) error {
	l.capture()
	l.memory.mu.Lock()
	defer l.memory.mu.Unlock()
	l.memory.copies = nil
	return nil
}

func (l *life) capture() {
	l.commits.Lock()
	defer l.commits.Unlock()
	l.memory.commit(l.source.Capture())
	l.memory.raise(l.source.Raised())
	l.source.Committed()
}

func (l *life) Delta(ctx context.Context, d *delta.Delta, to Recipients, record func(PipelineSet)) error {
	l.mu.Lock()
	if to.RecordOnly != to.Pipelines {
		l.handed++
	}
	blocked := l.after > 0 && l.handed > l.after
	l.mu.Unlock()
	if blocked {
		select {
		case <-l.released:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	l.Update(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		var passed PipelineSet
		for n, name := range l.names {
			if !to.Pipelines.Has(n) {
				continue
			}
			sent, passes := l.filter(name, d, to.Have.Has(n))
			if passes {
				passed |= 1 << n
			}
			if sent == nil || to.RecordOnly.Has(n) {
				continue
			}
			text := l.text(sent)
			if to.Left {
				text += "+left"
			}
			l.note(name, text, sent)
		}
		record(passed)
	})
	return nil
}

// filter returns what a pipeline gets of a delta, and whether its filters let the object pass.
func (l *life) filter(pipeline string, d *delta.Delta, had bool) (sent *delta.Delta, passes bool) {
	passes = l.passes == nil || l.passes(pipeline, d.Object)
	switch {
	case !l.onLeave:
		return d, passes
	case d.Type == delta.Deleted && d.Inferred:
		return d, false
	case passes:
		return d, true
	case had && (d.Type != delta.Added || d.Snapshot):
		left := *d
		left.Type = delta.Deleted
		return &left, false
	}
	return nil, false
}

func (l *life) Recipient(n int) Recipient { return lifeRecipient{l, n} }

type lifeRecipient struct {
	*life
	n int
}

func (l lifeRecipient) Offer(_ context.Context, d *delta.Delta, have bool, record func(bool)) bool {
	l.commits.RLock()
	defer l.commits.RUnlock()
	l.mu.Lock()
	defer l.mu.Unlock()
	name := l.names[l.n]
	if room, bounded := l.room[name]; bounded {
		if room <= 0 {
			return false
		}
		l.room[name]--
	}
	sent, passes := l.filter(name, d, have)
	if sent != nil {
		l.note(name, l.text(sent), sent)
	}
	record(passes)
	return true
}

func (l lifeRecipient) OfferMark(m *delta.Mark, record func()) (ok bool) {
	l.Update(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		name := l.names[l.n]
		if room, bounded := l.room[name]; bounded && room < 0 {
			return
		}
		ok = true
		if l.marks == nil {
			l.marks, l.marked = map[string][]*delta.Mark{}, map[string][]int{}
		}
		l.marks[name] = append(l.marks[name], m)
		l.marked[name] = append(l.marked[name], len(l.got[name]))
		record()
	})
	return ok
}

func (l lifeRecipient) Settled(context.Context, string) (bool, error) { return l.Died(""), nil }

func (l lifeRecipient) Undelivered(string) (int, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.waiting, ""
}

func (l lifeRecipient) Former(watch string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Contains(l.former, watch)
}

func (l lifeRecipient) Died(string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.died
}

func (l lifeRecipient) Room(ctx context.Context) error {
	for ctx.Err() == nil {
		l.mu.Lock()
		room, bounded := l.room[l.names[l.n]]
		l.mu.Unlock()
		if !bounded || room > 0 {
			return nil
		}
		if l.waits != nil {
			select {
			case l.waits <- l.names[l.n]:
			default:
			}
		}
		time.Sleep(time.Millisecond)
	}
	return ctx.Err()
}

// note adds what a pipeline gets.
func (l *life) note(name, text string, d *delta.Delta) {
	l.got[name], l.sent[name] = append(l.got[name], text), append(l.sent[name], d)
	if d != nil {
		l.deltas[text] = d
	}
}

// text is a delta's short id, with the previous version if it has one.
func (l *life) text(d *delta.Delta) string {
	if d.Old == nil {
		return shortID(d)
	}
	return shortID(d) + "<" + d.Old.ResourceVersion()
}

// gapRecords returns the gap records that were sent.
func (l *life) gapRecords() []*delta.Gap {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.gaps)
}

// delta returns the one that was sent last with this text, nil if none was.
func (l *life) delta(text string) *delta.Delta {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deltas[text]
}

func (l *life) Gap(_ context.Context, g *delta.Gap, record func()) error {
	if l.onGap != nil {
		l.onGap()
	}
	l.Update(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.gaps = append(l.gaps, g)
		for _, name := range l.names {
			l.note(name, fmt.Sprintf("gap %s-%s", g.From, g.To), nil)
		}
		record()
	})
	return nil
}

// crash ends the life; what was not captured is forgotten.
func (l *life) crash() { l.end() }

// stop ends the life with a last commit.
func (l *life) stop() {
	l.end()
	l.capture()
	l.memory.clean = true
}

// reaches waits until the first watch is in a state.
func (l *life) reaches(state State) {
	l.t.Helper()
	eventually(l.t, func() string {
		if s := l.source.Status()[0]; s.State != state {
			return fmt.Sprintf("got %+v, want %s", s, state)
		}
		return ""
	})
}

// expect waits for what a pipeline gets.
func (l *life) expect(name string, want ...string) {
	l.t.Helper()
	eventually(l.t, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if got := l.got[name]; !slices.Equal(got, want) {
			return fmt.Sprintf("%s got  %v\nwant %v", name, got, want)
		}
		return ""
	})
}

// expectSet waits for what a pipeline gets, in any order; want is sorted.
func (l *life) expectSet(name string, want ...string) {
	l.t.Helper()
	eventually(l.t, func() string {
		if got := l.sorted(name); !slices.Equal(got, want) {
			return fmt.Sprintf("%s got  %v\nwant %v", name, got, want)
		}
		return ""
	})
}

// snapshotsDone waits until no snapshot is pending.
func (l *life) snapshotsDone() {
	l.t.Helper()
	eventually(l.t, func() string {
		for _, w := range l.source.watches {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.state.Snapshots) > 0 {
				return fmt.Sprintf("pending: %+v", w.state.Snapshots)
			}
		}
		return ""
	})
}

// watching waits until the watch has its state, and has seen all that the server sent.
func (l *life) watching(position int) {
	l.t.Helper()
	eventually(l.t, func() string {
		if s := l.source.Status()[0]; s.State != StateWatching || s.Position != fmt.Sprint(position) {
			return fmt.Sprintf("%+v, want position %d", s, position)
		}
		return ""
	})
}

// watchingAll waits until each watch has its state.
func (l *life) watchingAll() {
	l.t.Helper()
	eventually(l.t, func() string {
		for _, s := range l.source.Status() {
			if s.State != StateWatching || s.Position == "" {
				return fmt.Sprintf("%+v", s)
			}
		}
		return ""
	})
}

func (l *life) sorted(name string) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(slices.Values(l.got[name]))
}

func things(t testing.TB, names ...string) *sourcetest.Server {
	server := sourcetest.New(t)
	for _, name := range names {
		server.Write(name, false)
	}
	return server
}

func TestResumesWhereTheLastCommitWas(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.capture()
	server.Write("a", false) // 13, seen and not committed
	l.watching(13)
	l.crash()
	server.Write("b", true) // 14
	server.Write("b", false)

	l = live(t, server, m, []string{"p"}, nil)
	l.expect("p", "u11/13/MODIFIED", "u12/14/DELETED", "u15/15/ADDED")
	l.stop()
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
	l = live(t, server, m, []string{"p"}, nil)
	server.Write("a", true)
	l.expect("p", "u11/16/DELETED")
}

func TestNewPipelineGetsItsSnapshot(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(12)
	l.stop()
	server.Write("a", false) // 13, while away
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expect("old", "u11/13/MODIFIED")
	l.expectSet("new", "u11/13/ADDED+s", "u11/13/MODIFIED", "u12/12/ADDED+s")
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, nil) // it had its snapshot
	server.Write("b", false)
	l.expect("old", "u12/14/MODIFIED")
	l.expect("new", "u12/14/MODIFIED")
	l.stop()

	// One that was not there for a while has missed what happened.
	l = live(t, server, m, []string{"old"}, nil)
	server.Write("b", false) // 15
	l.expect("old", "u12/15/MODIFIED")
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expectSet("new", "u11/13/ADDED+s", "u12/15/ADDED+s")
	l.expect("old")
}

// After a kill in the middle of a snapshot for a new pipeline, the rest of it follows.
func TestInterruptedSnapshotOfNewPipeline(t *testing.T) {
	server, m := things(t, "a", "b", "c", "d"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(14)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) { l.room = map[string]int{"new": 2} })
	l.expect("new", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.capture()
	l.crash()
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expect("new", "u13/13/ADDED+s", "u14/14/ADDED+s")
	l.expect("old")
}

// A snapshot for a new pipeline that is slower than compaction goes on where it was refused, instead of at page 1 again.
func TestSnapshotSlowerThanCompaction(t *testing.T) {
	var names, want []string
	for n := range 12 {
		names = append(names, fmt.Sprintf("o%02d", n))
		want = append(want, fmt.Sprintf("u%d/%d/ADDED+s", 11+n, 11+n))
	}
	server, m := things(t, names...), newMemory() // 11 to 22
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(22)
	l.stop()
	snapshots := 0
	l = live(t, server, m, []string{"old", "new"}, func(_ *Options, l *life) {
		l.passes = func(pipeline string, object *delta.Object) bool {
			if pipeline != "new" || object.Name() == "tick" {
				return true
			}
			if snapshots++; snapshots%2 == 0 { // in the middle of a page: the next one is refused
				server.Write("tick", false)
				server.CompactStates()
			}
			return true
		}
	})
	eventually(t, func() string {
		got := slices.DeleteFunc(l.sorted("new"), func(id string) bool { return strings.HasPrefix(id, "u23/") }) // tick
		if !slices.Equal(got, want) {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
	for _, id := range l.sorted("old") {
		if strings.HasSuffix(id, "+s") {
			t.Errorf("the other pipeline got %s", id)
		}
	}
}

func TestSnapshotModesAcrossRestarts(t *testing.T) {
	for mode, want := range map[delta.Snapshot][]string{
		delta.SnapshotInitial: {"u12/14/MODIFIED"},
		delta.SnapshotNever:   {"u12/14/MODIFIED"},
		delta.SnapshotAlways:  {"u11/13/ADDED+s", "u12/14/ADDED+s", "u12/14/MODIFIED"},
	} {
		t.Run(string(mode), func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory()
			adjust := func(o *Options, _ *life) { o.Snapshot = mode }
			l := live(t, server, m, []string{"p"}, adjust)
			l.watching(12)
			server.Write("a", false) // 13
			l.watching(13)
			first := []string{"u11/11/ADDED+s", "u11/13/MODIFIED", "u12/12/ADDED+s"}
			if mode == delta.SnapshotNever {
				first = []string{"u11/13/MODIFIED"}
			}
			if got := l.sorted("p"); !slices.Equal(got, first) {
				t.Errorf("first got %v, want %v", got, first)
			}
			l.stop()
			server.Write("b", false) // 14
			l = live(t, server, m, []string{"p"}, adjust)
			l.expectSet("p", want...)
			l.snapshotsDone()
			server.Cut(false) // a second snapshot in the same run would be one too many
			server.Write("a", true)
			l.expectSet("p", slices.Sorted(slices.Values(append(slices.Clone(want), "u11/15/DELETED")))...)
		})
	}
}

func TestNeverRecordsForNewPipelinesToo(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	adjust := func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever }
	l := live(t, server, m, []string{"old"}, adjust)
	l.watching(11)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, adjust)
	server.Write("a", false)
	l.expect("new", "u11/12/MODIFIED")
	l.expect("old", "u11/12/MODIFIED")
}

func TestNamespacesWidenedAndNarrowed(t *testing.T) {
	server, m := things(t, "shop/a", "team-1/b", "team-2/c"), newMemory() // 11 to 13
	selecting := func(globs ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: globs} }
	}
	l := live(t, server, m, []string{"p"}, selecting("shop*"))
	l.watching(13)
	l.stop()

	server.Write("shop/a", false) // 14
	l = live(t, server, m, []string{"p"}, selecting("shop*", "team-*"))
	l.expect("p", "u12/12/ADDED+s", "u13/13/ADDED+s", "u11/14/MODIFIED")
	l.stop()

	l = live(t, server, m, []string{"p"}, selecting("team-*"))
	l.expect("p", "u11/14/DELETED+i+left") // it exists
	server.Write("shop/a", false)          // 15
	server.Write("team-1/b", false)        // 16
	l.expect("p", "u11/14/DELETED+i+left", "u12/16/MODIFIED")
	l.stop()

	l = live(t, server, m, []string{"p"}, selecting("shop*", "team-*")) // and new again
	l.expect("p", "u11/15/ADDED+s")
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
}

// Plain names make a watch for each namespace and globs one of the cluster; what the old ones had is not lost.
func TestNamespacesFromNamesToGlobsAndBack(t *testing.T) {
	server, m := things(t, "shop/a", "shop/b", "team-1/c", "team-2/d"), newMemory() // 11 to 14
	selecting := func(include ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: include} }
	}
	l := live(t, server, m, []string{"p"}, selecting("shop"))
	l.watching(14)
	l.stop()
	server.Write("shop/a", true) // 15

	// One watch becomes a larger one: it goes on where the old one was.
	l = live(t, server, m, []string{"p"}, selecting("shop", "team-*"))
	l.expect("p", "u13/13/ADDED+s", "u14/14/ADDED+s", "u11/15/DELETED")
	l.stop()
	m.forget(l.source)
	server.Write("shop/b", true)   // 16
	server.Write("team-1/c", true) // 17

	// A large one becomes several: so do they.
	l = live(t, server, m, []string{"p"}, selecting("shop", "team-1"))
	eventually(t, func() string {
		if got := l.sorted("p"); !slices.Equal(got, []string{"u12/16/DELETED", "u13/17/DELETED", "u14/14/DELETED+i+left"}) {
			return fmt.Sprint(got)
		}
		return ""
	})
	l.stop()
	m.forget(l.source)
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
	server.Write("shop/e", false) // 18
	l = live(t, server, m, []string{"p"}, selecting("shop", "team-1"))
	l.expect("p", "u18/18/ADDED")
	l.stop() // at different positions
	server.Write("shop/e", true)

	// Several become one: there is no one position to go on from, so it is a gap. What is selected again existed before.
	l = live(t, server, m, []string{"p"}, selecting("shop", "team-?"))
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) != 3 || got[1] != "u14/14/ADDED+s" || got[2] != "u18/18/DELETED+i" {
			return fmt.Sprint(got)
		}
		return ""
	})
}

// What was deleted while nothing ran is not forgotten because an edited configuration does not select it any more.
func TestDeletedAndNotSelectedAnyMore(t *testing.T) {
	tests := []struct {
		name          string
		before, after func(*Options, *life)
	}{
		{
			"namespaces from globs to globs",
			func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop", "team-*"} },
			func(o *Options, _ *life) { o.Namespaces.Include = []string{"sho*"} },
		},
		{
			"one of several namespaces",
			func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop", "team-1", "team-2"} },
			func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop"} },
		},
		{
			"from the cluster to a namespace",
			func(*Options, *life) {},
			func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop"} },
		},
		{
			"another name of the source",
			func(o *Options, _ *life) { o.Namespaces.Include = []string{"*"} },
			func(o *Options, _ *life) { o.Name, o.Namespaces.Include = "renamed", []string{"sho*"} },
		},
		{
			"a namespace excluded",
			func(o *Options, _ *life) { o.Namespaces.Exclude = []string{"none"} },
			func(o *Options, _ *life) { o.Namespaces.Exclude = []string{"team-1", "team-2"} },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server, m := things(t, "shop/a", "shop/b", "team-1/c", "team-2/d"), newMemory() // 11 to 14
			l := live(t, server, m, []string{"p"}, tt.before)
			eventually(t, func() string {
				if n := len(l.sorted("p")); n != 4 {
					return fmt.Sprint(n)
				}
				return ""
			})
			l.snapshotsDone() // one that is not goes on
			l.stop()
			server.Write("team-1/c", true) // 15
			server.Write("shop/a", true)   // 16
			l = live(t, server, m, []string{"p"}, tt.after)
			eventually(t, func() string {
				got := l.sorted("p")
				for n := range got {
					got[n] = strings.Replace(got[n], "u11/16/DELETED", "u11/11/DELETED+i", 1) // inferred where positions differ
				}
				if !slices.Equal(got, []string{"u11/11/DELETED+i", "u13/13/DELETED+i", "u14/14/DELETED+i+left"}) {
					return fmt.Sprint(got)
				}
				return ""
			})
			l.stop()
			m.forget(l.source)
			l = live(t, server, m, []string{"p"}, tt.after) // once is enough
			server.Write("shop/b", false)
			l.expect("p", "u12/17/MODIFIED")
		})
	}
}

// A namespace that is not listed any more leaves those that stay where they were, also if its own watch was at another position or never
// had one. Sequences of what is deleted in it are not below what was sent.
func TestNamespaceNotListedAnyMore(t *testing.T) {
	only := func(names ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces.Include = names }
	}
	t.Run("further on", func(t *testing.T) {
		server, m := things(t, "shop/x", "team/c", "team/d"), newMemory() // 11 to 13
		l := live(t, server, m, []string{"p"}, only("shop", "team"))
		l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s")
		l.snapshotsDone()
		server.Write("team/c", false) // 14
		server.Write("team/d", false) // 15
		l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u12/14/MODIFIED", "u13/13/ADDED+s", "u13/15/MODIFIED")
		l.stop()
		server.Away(func() {
			server.Write("shop/x", false) // 16
			server.Write("shop/x", false) // 17
			server.Write("shop/x", false) // 18
			server.Write("shop/y", false) // 19
			server.Write("shop/y", true)  // 20
			server.Write("team/c", true)  // 21
		})
		l = live(t, server, m, []string{"p"}, only("shop"))
		l.expectSet("p", "u11/16/MODIFIED", "u11/17/MODIFIED", "u11/18/MODIFIED", "u12/14/DELETED+i", "u13/15/DELETED+i+left", "u19/19/ADDED", "u19/20/DELETED")
		for _, text := range []string{"u12/14/DELETED+i", "u13/15/DELETED+i"} {
			if d := l.delta(text); d != nil && sequence(d) < 15 {
				t.Errorf("the sequence of %s is %d, after 15", text, sequence(d))
			}
		}
	})
	for _, snapshot := range []delta.Snapshot{delta.SnapshotInitial, delta.SnapshotNever} {
		t.Run("never readable, "+string(snapshot), func(t *testing.T) {
			server, m := things(t, "shop/x"), newMemory() // 11
			var denied atomic.Bool
			denied.Store(true)
			front := forbidding(t, server, &denied)
			with := func(names ...string) func(*Options, *life) {
				return func(o *Options, _ *life) { o.Namespaces.Include, o.Snapshot = names, snapshot }
			}
			l := live(t, front, m, []string{"p"}, with("shop", "team"))
			l.watching(11)
			l.snapshotsDone()
			l.stop()
			server.Away(func() {
				server.Write("shop/x", false) // 12
				server.Write("shop/x", false) // 13
				server.Write("shop/y", false) // 14
			})
			l = live(t, front, m, []string{"p"}, with("shop"))
			l.expect("p", "u11/12/MODIFIED", "u11/13/MODIFIED", "u14/14/ADDED")
		})
	}
}

// forbidding is a server on which the namespace team cannot be read while denied is set.
func forbidding(t *testing.T, server *sourcetest.Server, denied *atomic.Bool) *sourcetest.Server {
	return before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		forbidden := denied.Load() && strings.Contains(r.URL.Path, "/team/")
		if forbidden {
			w.WriteHeader(http.StatusForbidden)
		}
		return forbidden
	})
}

// A lost leader may have sent objects of a namespace that could not be read since, and is not listed any more.
func TestLostInANamespaceThatIsNotListedAnyMore(t *testing.T) {
	server, m := things(t, "shop/x"), newMemory() // 11
	m.floor = 1
	var denied atomic.Bool
	denied.Store(true)
	front := forbidding(t, server, &denied)
	l := live(t, front, m, []string{"p"}, func(o *Options, _ *life) {
		o.Namespaces.Include, o.HistoryLost = []string{"shop", "team"}, "lost"
	})
	l.expect("p", "gap -11", "u11/11/ADDED+s")
	l.watching(11)
	l.snapshotsDone()
	l.stop()
	server.Away(func() { server.Write("shop/x", false) }) // 12
	l = live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop"} })
	l.expect("p", "gap 11-12", "u11/12/MODIFIED")
	if gaps := l.gapRecords(); !gaps[0].Unclean || gaps[0].Reason != "lost" {
		t.Errorf("gaps %+v", gaps[0])
	}
	l.stop()
	m.forget(l.source)
	server.Write("shop/x", false) // 13
	l = live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop"} })
	l.expect("p", "u11/13/MODIFIED")
	if meta := m.only(t); meta.Lost {
		t.Errorf("still lost: %+v", meta)
	}
}

// A namespace whose first state was interrupted by a kill, and that is not listed any more after a stop, leaves a gap record: what was sent of
// it is not known.
func TestKilledInAFirstStateThatIsNotListedAnyMore(t *testing.T) {
	server, m := things(t, "shop/x", "team/c", "team/d"), newMemory() // 11 to 13
	var denied atomic.Bool
	denied.Store(true)
	front := forbidding(t, server, &denied)
	both := func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop", "team"} }
	l := live(t, front, m, []string{"p"}, both)
	l.watching(13)
	l.snapshotsDone()
	l.stop()
	denied.Store(false)
	l = live(t, front, m, []string{"p"}, func(o *Options, l *life) { both(o, l); l.after = 1 })
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) != 1 {
			return fmt.Sprint(got)
		}
		return ""
	})
	l.crash()
	denied.Store(true)
	l = live(t, front, m, []string{"p"}, both)
	l.watching(13)
	l.stop()
	denied.Store(false)
	server.Away(func() { server.Write("shop/x", false) }) // 14
	l = live(t, front, m, []string{"p"}, func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop"} })
	l.expect("p", "gap 13-14", "u11/14/MODIFIED")
}

// A namespace that is not listed any more leaves a gap record if it is not known what was sent of it, also where the one that stays was never
// read. There is one record.
func TestUncertainWhereTheOneThatStaysWasNeverRead(t *testing.T) {
	for name, killed := range map[string]bool{"killed": true, "the record was due": false} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/x", "team/c"), newMemory() // 11 and 12
			var denied atomic.Bool
			denied.Store(true)
			front := forbidding(t, server, &denied)
			with := func(names ...string) func(*Options, *life) {
				return func(o *Options, _ *life) { o.Namespaces.Include = names }
			}
			l := live(t, front, m, []string{"p"}, with("shop", "team"))
			l.watching(12)
			l.snapshotsDone()
			l.stop()
			l = live(t, front, m, []string{"p"}, with("shop", "team"))
			l.watching(12)
			if killed {
				server.Write("shop/n", false) // 13
				l.expect("p", "u13/13/ADDED")
				l.crash()
				server.Write("shop/n", true) // 14
			} else {
				l.stop()
				m.edit(t, "shop", func(meta *Meta) { meta.Uncertain = "something" })
			}
			denied.Store(false)
			l = live(t, front, m, []string{"p"}, with("team"))
			l.watching(server.Version())
			l.snapshotsDone()
			want := []string{fmt.Sprintf("gap -%d", server.Version()), "u11/11/DELETED+i+left", "u12/12/ADDED+s"}
			l.expectSet("p", want...)
			if gap := l.gapRecords()[0]; !gap.Unclean {
				t.Errorf("got %+v", gap)
			}
			server.Cut(false) // it goes on at its position
			server.Write("team/c", false)
			l.watching(server.Version())
			l.expectSet("p", append(want, fmt.Sprintf("u12/%d/MODIFIED", server.Version()))...)
			l.stop()
			m.forget(l.source)
			l = live(t, front, m, []string{"p"}, with("team"))
			l.watching(server.Version())
			l.expect("p")
		})
	}
}

// A namespace that is not listed in a run that reads nothing, and is listed again in the next, begins with a gap record if what is known of
// it is not as of the position that stayed: before or behind that, or amid a gap.
func TestListedAgainBeforeAnythingWasRead(t *testing.T) {
	for name, tt := range map[string]struct {
		changed bool
		stopped func(*Meta) // what the last run left of the namespace
		forget  string
		want    []string
	}{
		"further on":  {true, func(*Meta) {}, "", []string{"gap 13-16"}},
		"behind":      {false, func(meta *Meta) { meta.Position = "12" }, "team/o", []string{"gap 12-13", "u13/13/ADDED+i"}},
		"amid a gap":  {false, func(meta *Meta) { meta.Refused = "expired" }, "", []string{"gap 13-13"}},
		"where it is": {false, func(*Meta) {}, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/x", "team/d", "team/o"), newMemory() // 11 to 13
			with := func(names ...string) func(*Options, *life) {
				return func(o *Options, l *life) {
					o.Namespaces.Include, o.Snapshot, l.onLeave = names, delta.SnapshotNever, true
				}
			}
			l := live(t, server, m, []string{"p"}, with("shop", "team"))
			l.watchingAll()
			if tt.changed {
				server.Write("team/d", true)  // 14
				server.Write("team/o", false) // 15
				server.Write("team/e", false) // 16
				l.expect("p", "u12/14/DELETED", "u13/15/MODIFIED", "u16/16/ADDED")
			}
			l.watchingAll()
			l.stop()
			m.edit(t, "team", tt.stopped)
			for _, known := range m.known {
				delete(known, tt.forget)
			}
			m.unread(t, server, with("shop"))
			m.unread(t, server, with("shop")) // once more changes nothing
			l = live(t, server, m, []string{"p"}, with("shop", "team"))
			l.watchingAll()
			l.expectSet("p", tt.want...)
			server.Write("team/n", false)
			l.expectSet("p", append(slices.Clone(tt.want), fmt.Sprintf("u%[1]d/%[1]d/ADDED", server.Version()))...)
		})
	}
}

// What the watch of a namespace that is listed again inherits is not kept of the other one as well: it would get older there, and an object
// made anew since would count as deleted.
func TestInheritedObjectsAreKeptOnce(t *testing.T) {
	server, m := things(t, "shop/x", "team/c"), newMemory() // 11 and 12
	with := func(names ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces.Include = names }
	}
	l := live(t, server, m, []string{"p"}, with("shop", "team"))
	l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s")
	l.snapshotsDone()
	l.watchingAll()
	l.stop()
	m.unread(t, server, with("shop"))
	l = live(t, server, m, []string{"p"}, with("shop", "team"))
	l.watchingAll()
	l.snapshotsDone()
	l.stop()
	for id, known := range m.known {
		if len(known) != 1 {
			t.Errorf("of %s is kept %v", id, slices.Collect(maps.Keys(known)))
		}
	}
	l = live(t, server, m, []string{"p"}, with("shop", "team"))
	l.watchingAll()
	server.Write("team/c", true)  // 13
	server.Write("team/c", false) // 14
	l.expect("p", "u12/13/DELETED", "u14/14/ADDED")
	l.stop()
	l = live(t, server, m, []string{"p"}, with("shop"))
	l.expect("p", "u14/14/DELETED+i+left")
}

// A run that ends while the resource is gone in one namespace, and is back in another, leaves what is there as it is, if only one of them is
// listed any more. A killed one may have sent the DELETED of what is known: it is sent again.
func TestGoneInOneNamespaceOfTwo(t *testing.T) {
	with := func(names ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces.Include = names }
	}
	for _, test := range []struct {
		gone   string
		killed bool
		want   []string
	}{
		{"team", false, []string{"u11/13/MODIFIED", "u12/12/DELETED+i+left"}},
		{"shop", false, []string{"gap 12-13", "u11/13/MODIFIED+i", "u12/12/DELETED+i+left"}},
		{"shop", true, []string{"gap 12-12", "u11/11/ADDED+s", "u12/12/DELETED+i+left"}},
	} {
		t.Run(fmt.Sprint(test.gone, " killed: ", test.killed), func(t *testing.T) {
			server, m := things(t, "shop/x", "team/c"), newMemory() // 11 and 12
			l := live(t, server, m, []string{"p"}, with("shop", "team"))
			l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s")
			l.snapshotsDone()
			l.watchingAll()
			l.stop()
			m.edit(t, test.gone, func(meta *Meta) { meta.Gone, meta.Refused = 13, historyGone })
			if m.clean = !test.killed; m.clean {
				server.Away(func() { server.Write("shop/x", false) }) // 13
			}
			l = live(t, server, m, []string{"p"}, with("shop"))
			l.expectSet("p", test.want...)
			if gone := l.delta("u12/12/DELETED+i+left"); sequence(gone) < 12 {
				t.Errorf("the sequence of %s is %d, after 12", shortID(gone), sequence(gone))
			}
		})
	}
}

// What is left of a resource that is gone is deleted, unless a watch has found it again.
func TestGoneOfTwoWatches(t *testing.T) {
	read, reads := Meta{Position: "20", Complete: true}, Meta{Begun: true, Reading: 20}
	gone, over, unread := Meta{Position: "1000", Gone: 1001}, Meta{Reading: 1000, Edited: 1001}, Meta{}
	for _, test := range []struct {
		own, other    Meta
		gone, reading uint64 // where one watch goes on with both
	}{
		{gone, gone, 1001, 0},
		{gone, over, 1001, 1000},
		{over, gone, 1001, 1000},
		{gone, unread, 1001, 1000},
		{over, read, 0, 20},
		{read, over, 0, 20},
		{over, reads, 0, 20},
		{gone, read, 0, 1000}, // the history of both is compared
	} {
		merged, beside := test.own, test.own
		merged.merge(test.other)
		beside.mergeApart(test.other)
		if merged.Gone != test.gone || beside.Gone != test.gone || merged.Reading != test.reading {
			t.Errorf("%+v and %+v: got %d and %d, apart %d", test.own, test.other, merged.Gone, merged.Reading, beside.Gone)
		}
		if raised := max(merged.Edited, merged.Gone); test.own.Gone+test.other.Gone > 0 && (raised < 1001 || max(beside.Edited, beside.Gone) < 1001 && test.own.Gone > 0) {
			t.Errorf("%+v and %+v: sequences begin at %d", test.own, test.other, raised)
		}
	}
}

// Whether what a watch finds that goes on from two is new: a watch without a position is complete where its resource was not there.
func TestCompleteOfTwoWatches(t *testing.T) {
	absent, unread, read := Meta{Complete: true}, Meta{}, Meta{Complete: true, Position: "12"}
	for _, test := range []struct {
		own, other     Meta
		merged, beside bool // beside if the other one is not listed any more
	}{
		{absent, unread, true, true},
		{unread, absent, true, true},
		{unread, read, true, false},
		{read, unread, true, true},
		{unread, unread, false, false},
	} {
		merged, beside := test.own, test.own
		merged.merge(test.other)
		beside.mergeApart(test.other)
		if merged.Complete != test.merged || beside.Complete != test.beside {
			t.Errorf("%+v and %+v: complete is %t, apart %t", test.own, test.other, merged.Complete, beside.Complete)
		}
	}
}

// What an edit adds is a snapshot behind a gap, too: without snapshots it is not sent. Only what has changed since is a change.
func TestWidenedBehindAGap(t *testing.T) {
	for mode, want := range map[delta.Snapshot][]string{
		delta.SnapshotInitial: {"gap 14-18", "u11/15/MODIFIED+i", "u12/12/ADDED+s", "u13/16/ADDED+i", "u17/17/ADDED+i"},
		delta.SnapshotNever:   {"gap 14-18", "u11/15/MODIFIED+i", "u13/16/ADDED+i", "u17/17/ADDED+i"},
	} {
		t.Run(string(mode), func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b", "team/c", "shop/d"), newMemory() // 11 to 14
			selecting := func(globs ...string) func(*Options, *life) {
				return func(o *Options, _ *life) { o.Namespaces.Include, o.Snapshot = globs, mode }
			}
			l := live(t, server, m, []string{"p"}, selecting("shop*"))
			l.watching(14)
			l.snapshotsDone()
			l.stop()
			server.Away(func() {
				server.Write("shop/a", false) // 15
				server.Write("team/c", false) // 16
				server.Write("team/n", false) // 17
				server.Compact()              // 18
			})
			l = live(t, server, m, []string{"p"}, selecting("shop*", "team*"))
			l.watching(18)
			l.expectSet("p", want...)
			server.Write("team/b", false) // 19
			l.expectSet("p", slices.Sorted(slices.Values(append(slices.Clone(want), "u12/19/MODIFIED")))...)
		})
	}
}

// Of two watches that become one, the first by id or the second was never read. Behind the gap record, without snapshots, too, what was
// made since the position of the other is new.
func TestWidenedWhereOneWasNeverRead(t *testing.T) {
	for name, first := range map[string]string{"shop": "shop", "team": "team", "shop, absent": "shop", "team, absent": "team"} {
		t.Run(name+" is the first", func(t *testing.T) {
			server, m := things(t, "shop/x", "team/b"), newMemory() // 11 and 12
			var denied atomic.Bool
			denied.Store(true)
			front := forbidding(t, server, &denied)
			with := func(include ...string) func(*Options, *life) {
				return func(o *Options, _ *life) {
					o.Name, o.Namespaces.Include, o.Snapshot = map[string]string{"shop": "d", "team": "a"}[first], include, delta.SnapshotNever
				}
			}
			l := live(t, front, m, []string{"p"}, with("shop", "team"))
			if ids := l.source.WatchIDs(); (ids[0] < ids[1]) != (first == "shop") {
				t.Fatalf("another name is needed: the ids are %v", ids)
			}
			l.watching(12)
			l.stop()
			want := []string{"gap 12-14", "u13/13/ADDED+i", "u14/14/ADDED+i"}
			if name != first { // it waited for the resource, and all that it finds is new
				m.edit(t, "team", func(meta *Meta) { meta.Complete = true })
				want = slices.Insert(want, 1, "u12/12/ADDED+i")
			}
			denied.Store(false)
			server.Away(func() {
				server.Write("shop/y", false) // 13
				server.Write("team/n", false) // 14
			})
			l = live(t, front, m, []string{"p"}, with("shop*", "team*"))
			l.watching(14)
			l.expectSet("p", want...)
		})
	}
}

// A kill in the middle of reading what is newly included does not shorten it.
func TestInterruptedWidening(t *testing.T) {
	server, m := things(t, "shop/a", "team/b", "team/c", "team/d"), newMemory()
	l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop*"} })
	l.watching(14)
	l.stop()
	all := func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop*", "team*"} }
	l = live(t, server, m, []string{"p"}, func(o *Options, l *life) { all(o, l); l.after = 1 })
	l.expect("p", "u12/12/ADDED+s")
	l.capture()
	l.crash()
	l = live(t, server, m, []string{"p"}, all)
	l.expect("p", "u13/13/ADDED+s", "u14/14/ADDED+s")
}

func TestInterruptedFirstReading(t *testing.T) {
	server, m := things(t, "a", "b", "c", "d"), newMemory()
	l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 2 })
	eventually(t, func() string {
		if n := len(l.sorted("p")); n != 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	l.stop()
	first := l.sorted("p")
	l = live(t, server, m, []string{"p"}, nil)
	l.watching(14)
	if got := slices.Sorted(slices.Values(append(first, l.sorted("p")...))); !slices.Equal(got, []string{
		"u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED+s",
	}) {
		t.Errorf("got %v", got)
	}
}

// So does a history that goes back before its end: there is no position yet, and sequences would go back.
func TestRollbackInAFirstReading(t *testing.T) {
	server, m := things(t, "a", "b", "c", "d"), newMemory() // up to 14
	l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 2 })
	eventually(t, func() string {
		if n := len(l.sorted("p")); n != 2 {
			return fmt.Sprint(n)
		}
		return ""
	})
	l.stop()
	server.RollBack(12)
	expectRollback(t, server, m, "p")
}

// expectRollback runs the source once more, and waits until it reports that the history has gone back. It must have sent nothing by then.
func expectRollback(t *testing.T, server *sourcetest.Server, m *memory, names ...string) {
	t.Helper()
	reported := make(chan error, 100)
	l := live(t, server, m, names, func(o *Options, _ *life) { o.OnRollback = func(err error) { reported <- err } })
	select {
	case err := <-reported:
		if !strings.Contains(err.Error(), "gone back") {
			t.Errorf("got %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("nothing reported, and sent %v", l.sorted(names[0]))
	}
	l.stop()
	if got := l.sorted(names[0]); len(got) > 0 {
		t.Errorf("sent %v", got)
	}
}

// etcd is restored to before what was read behind a gap, and after the position.
func TestRollbackInAReadingBehindAGap(t *testing.T) {
	server, m := things(t, "a", "b", "c", "d", "e"), newMemory() // up to 15
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(15)
	l.snapshotsDone()
	l.stop()
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		server.Write(name, false) // up to 20
	}
	server.Compact() // 21
	l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 4 })
	l.expect("p", "gap 15-21", "u11/16/MODIFIED+i", "u12/17/MODIFIED+i", "u13/18/MODIFIED+i", "u14/19/MODIFIED+i")
	l.stop()
	server.RollBack(17)
	expectRollback(t, server, m, "p")
}

// A CRD is deleted, and a restore of etcd brings it back. Without a CRD, an API that comes back may have versions of its own.
func TestRollbackBringsAResourceBack(t *testing.T) {
	for name, lost := range map[string]string{"CRD": "", "no CRD": "", "no CRD, taken over": "a leader's state"} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory()
			defined := name == "CRD"
			server.Defined = defined
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(12)
			l.snapshotsDone()
			server.SetMissing(true)
			l.expectSet("p", "gap 12-", "u11/11/ADDED+s", "u11/11/DELETED+i", "u12/12/ADDED+s", "u12/12/DELETED+i")
			l.stop()
			server.RollBack(11)
			server.SetMissing(false)
			if defined {
				expectRollback(t, server, m, "p")
				return
			}
			l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.HistoryLost = lost })
			l.watching(11)
			if lost == "" {
				l.expect("p", "u11/11/ADDED+s")
			}
		})
	}
}

// A resource goes while what came with it is read for the first time: what was not read yet came and went without a record.
func TestGoneInAFirstReading(t *testing.T) {
	server, m := sourcetest.New(t), newMemory()
	server.NoWatchList = true
	server.SetMissing(true)
	l := live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		o.Snapshot = delta.SnapshotNever
		l.after, l.released = 1, make(chan struct{})
	})
	eventually(t, func() string {
		if s := l.source.Status()[0]; s.State != StateMissing {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		server.Write(name, false)
	}
	server.SetMissing(false)
	eventually(t, func() string { // the first page of two is read
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.handed < 2 {
			return fmt.Sprint("handed over ", l.handed)
		}
		return ""
	})
	server.SetMissing(true)
	close(l.released)
	eventually(t, func() string {
		if n := len(l.sorted("p")); n < 7 {
			return fmt.Sprint(l.sorted("p"))
		}
		return ""
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if got := l.got["p"]; got[3] != "gap -" {
		t.Errorf("got %v, want a gap between three ADDED and three DELETED", got)
	}
}

// A first state that was not sent to its end, and an edit that selects less: what exists is not deleted.
func TestInterruptedFirstReadingAndAnEdit(t *testing.T) {
	server, m := things(t, "shop/a", "team/b"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.stop()
	for id, text := range m.meta { // as if it had stopped just before the end
		var meta map[string]any
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
		meta["complete"], meta["begun"] = false, true
		delete(meta, "position")
		m.meta[id], _ = json.Marshal(meta)
	}
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Namespaces.Include = []string{"shop*"} })
	l.expect("p", "u12/12/DELETED+i+left", "u11/11/ADDED+s") // the snapshot begins anew
	l.expectMarks("p", "started 0 at 0", "completed 0 at 2 count 1")
}

// Killed in its first snapshot, before any of it was committed: an object that was sent may be gone at the next start, and
// nothing is known of it. So a gap stands before the state. After a clean stop it is known what was sent.
func TestFirstReadingEndsBeforeACommit(t *testing.T) {
	for _, killed := range []bool{true, false} {
		t.Run(fmt.Sprint("killed ", killed), func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory()
			l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
			eventually(t, func() string {
				if n := len(l.sorted("p")); n != 1 {
					return fmt.Sprint(n)
				}
				return ""
			})
			sent, others := "a", "u12/12/ADDED+s"
			if l.sorted("p")[0] != "u11/11/ADDED+s" {
				sent, others = "b", "u11/11/ADDED+s"
			}
			want := []string{others}
			if killed {
				l.crash()
				want = append(want, "gap -13")
			} else {
				l.stop()
				want = append(want, strings.TrimSuffix(l.sorted("p")[0], "ADDED+s")+"DELETED+i")
			}
			server.Write(sent, true) // 13
			l = live(t, server, m, []string{"p"}, nil)
			l.watching(13)
			slices.Sort(want)
			if got := l.sorted("p"); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func TestPositionRefusedAfterRestart(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprint("clean ", clean), func(t *testing.T) {
			server, m := things(t, "kept", "changed", "deleted"), newMemory() // 11 to 13
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(13)
			l.stop()
			if !clean {
				l = live(t, server, m, []string{"p"}, nil)
				l.crash()
			}
			server.Write("changed", false) // 14
			server.Write("deleted", true)
			server.Write("new", false) // 16
			server.Compact()           // 17
			l = live(t, server, m, []string{"p"}, nil)
			l.watching(17)
			got := l.sorted("p")
			if !slices.Equal(got, []string{"gap 13-17", "u12/14/MODIFIED+i", "u13/13/DELETED+i", "u16/16/ADDED+i"}) {
				t.Errorf("got %v", got)
			}
			if gaps := l.gapRecords(); len(gaps) != 1 || gaps[0].Unclean == clean {
				t.Errorf("got gaps %+v", gaps)
			}
			server.Write("kept", false) // 18
			l.watching(18)
			l.stop()
			server.Write("kept", true)
			server.Compact()
			l = live(t, server, m, []string{"p"}, nil)
			l.watching(20)
			if gaps := l.gapRecords(); len(gaps) != 1 || gaps[0].Unclean {
				t.Errorf("after a clean end: got gaps %+v", gaps)
			}
		})
	}
}

// What the last interval of a killed run held is unknown until the server gave the history since.
func TestUncleanLastsUntilTheHistoryIsSeen(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.capture()
	l.crash()
	server.Write("a", false)
	server.Deny(503, 1<<30)
	l = live(t, server, m, []string{"p"}, nil) // never gets anywhere
	eventually(t, func() string {
		if s := l.source.Status()[0]; s.State != StateFailing {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	l.stop()
	server.Deny(0, 0)
	server.Compact() // 13
	l = live(t, server, m, []string{"p", "new"}, nil)
	l.watching(13)
	if gaps := l.gapRecords(); len(gaps) != 1 || !gaps[0].Unclean {
		t.Errorf("got gaps %+v, want one that is unclean", gaps)
	}
}

// A killed run may have sent more than the next one comes to see before it ends in good order.
func TestUncleanLastsUntilTheLastRunIsPassed(t *testing.T) {
	for _, after := range []int{1, 2} {
		t.Run(fmt.Sprint(after), func(t *testing.T) {
			server, m := things(t, "a"), newMemory()
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(11)
			l.snapshotsDone()
			l.capture()
			server.Write("b", false) // 12
			server.Write("c", false) // 13
			l.watching(13)
			l.crash()
			l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = after })
			l.expect("p", []string{"u12/12/ADDED", "u13/13/ADDED"}[:after]...)
			if after == 2 {
				l.watching(13) // recorded, too
			}
			l.stop()
			server.Compact() // 14
			l = live(t, server, m, []string{"p"}, nil)
			l.watching(14)
			if gaps, passed := l.gapRecords(), after == 2; len(gaps) != 1 || gaps[0].Unclean == passed {
				t.Errorf("got gaps %+v", gaps)
			}
		})
	}
}

// A reading that closes a gap and is killed goes on behind another gap, even where the server would give the history
// now: versions would come again that are older than what was delivered.
func TestInterruptedRelist(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory() // 11 to 13
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(13)
	l.stop()
	server.Write("a", false) // 14
	server.Write("a", false) // 15
	server.Write("b", false) // 16
	server.Compact()         // 17
	l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
	l.expect("p", "gap 13-17", "u11/15/MODIFIED+i")
	l.capture()
	l.crash()
	server.Remember() // another server of the same cluster answers
	l = live(t, server, m, []string{"p"}, nil)
	l.expect("p", "gap 13-17", "u12/16/MODIFIED+i")
	if !l.gapRecords()[0].Unclean {
		t.Errorf("got gap %+v, want it unclean", l.gapRecords()[0])
	}
	l.watching(17)
	l.stop()
	if meta := m.only(t); meta.Position != "17" {
		t.Errorf("got %+v", meta)
	}
}

// The server may refuse the state at a position, and give the history since: then there is no gap.
func TestStateRefusedButNotTheHistory(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(12)
	l.stop()
	server.Write("a", false) // 13
	server.CompactStates()
	l = live(t, server, m, []string{"old", "new"}, nil)
	l.expect("old", "u11/13/MODIFIED")
	eventually(t, func() string {
		got := slices.DeleteFunc(l.sorted("new"), func(id string) bool { return !strings.HasSuffix(id, "+s") })
		if !slices.Equal(got, []string{"u11/13/ADDED+s", "u12/12/ADDED+s"}) {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
	if gaps := l.gapRecords(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
}

// What a killed run may have sent of what an edit added cannot be read any more, and may not pass now: a gap record says so, once.
func TestStateRefusedAfterAKillWithinAnEdit(t *testing.T) {
	server, m := things(t, "shop/a", "team/b"), newMemory() // 11 12
	of := func(include string) func(*Options, *life) {
		return func(o *Options, l *life) {
			o.Namespaces.Include, l.onLeave = []string{include}, true
			l.passes = func(_ string, o *delta.Object) bool { return o.ResourceVersion() != "13" }
		}
	}
	l := live(t, server, m, []string{"p"}, of("sho*"))
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	l = live(t, server, m, []string{"p"}, of("*"))
	l.expect("p", "u12/12/ADDED+s")
	l.crash()
	server.Write("team/b", false) // 13 does not pass
	server.CompactStates()
	l = live(t, server, m, []string{"p"}, of("*"))
	l.watching(13)
	l.stop()
	l.expect("p", "gap 12-13")
	if gap := l.gapRecords()[0]; !gap.Unclean {
		t.Errorf("got %+v", gap)
	}
}

// A history that goes back while a watch is open is noticed when it is opened again.
func TestRollbackWhileRunning(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	reported := make(chan error, 100)
	l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
		o.OnRollback = func(err error) { reported <- err }
	})
	l.watching(12)
	server.RollBack(11)
	server.Cut(false)
	if err := <-reported; !strings.Contains(err.Error(), "gone back") {
		t.Errorf("got %v", err)
	}
	l.stop()
}

// A restore of etcd may raise the server's resource version, so that it refuses all positions. Those of objects are as in the backup: what
// was sent since would have a higher sequence than what exists now.
func TestRestoreThatRaisesTheResourceVersion(t *testing.T) {
	for name, since := range map[string]func(*sourcetest.Server){
		"changed": func(server *sourcetest.Server) { server.Write("a", false) },
		"deleted": func(server *sourcetest.Server) { server.Write("b", true) },
		"made anew": func(server *sourcetest.Server) {
			server.Write("b", true)
			server.Write("b", false)
		},
	} {
		for _, run := range []string{"running", "stopped", "killed"} {
			t.Run(name+", "+run, func(t *testing.T) {
				server, m := things(t, "a", "b", "c"), newMemory() // 11 to 13
				var reported atomic.Value
				l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.OnRollback = func(err error) { reported.Store(err) } })
				l.watching(13)
				l.snapshotsDone()
				since(server)
				l.watching(server.Version())
				before := l.sorted("p")
				switch run {
				case "stopped":
					l.stop()
				case "killed":
					l.capture()
					l.crash()
				}
				server.Away(func() {
					server.Restore(13, 1000)
					server.Write("d", false) // since the restore
				})
				if run != "running" {
					expectRollback(t, server, m, "p")
					return
				}
				eventually(t, func() string { return map[bool]string{true: "not noticed"}[reported.Load() == nil] })
				if got := l.sorted("p"); !slices.Equal(got, before) {
					t.Errorf("got %v, and %v before", got, before)
				}
			})
		}
	}
	// What was only made since is a gap like any other.
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	server.Write("b", false) // 12
	l.watching(12)
	server.Away(func() { server.Restore(11, 1000) })
	l.expectSet("p", "gap 12-1011", "u11/11/ADDED+s", "u12/12/ADDED", "u12/12/DELETED+i")
}

// A handler may block for hours between the first request to the server and the watch.
func TestRollbackWhileTheHandlerBlocks(t *testing.T) {
	for name, edited := range map[string]bool{"pages behind a refusal": false, "killed and edited": true} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "a", "b"), newMemory() // 11, 12
			l := live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Filters = []string{"1"} })
			l.watching(12)
			l.capture()
			l.crash()
			filters := []string{"2"}
			if !edited {
				filters = []string{"1"}
				server.Compact() // 13
			}
			l = live(t, server, m, []string{"p"}, func(o *Options, l *life) {
				o.Filters, o.OnRollback = filters, nil
				l.onGap = func() { server.RollBack(11) }
			})
			eventually(t, func() string {
				if s := l.source.Status()[0]; !strings.Contains(s.Error, "gone back") {
					return fmt.Sprintf("%+v", s)
				}
				return ""
			})
		})
	}
}

// After a restore of etcd nothing is watched, and nothing is delivered under versions that come again.
func TestRollback(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.stop()
	server.RollBack(11)
	reported := make(chan error, 100)
	l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) {
		o.OnRollback = func(err error) {
			select {
			case reported <- err:
			default:
			}
		}
	})
	if err := <-reported; !strings.Contains(err.Error(), "gone back") {
		t.Errorf("got %v", err)
	}
	server.Write("b", false)
	eventually(t, func() string { // it stays closed
		if s := l.source.Status()[0]; s.State != StateFailing || s.Error == "" {
			return fmt.Sprintf("%+v", s)
		}
		return ""
	})
	l.stop()
	l.expect("p")
	if meta := m.only(t); meta.Position != "12" {
		t.Errorf("got %+v", meta)
	}
}

// A resource that is gone when the process starts took its objects along, and what happened to them before.
func TestResourceGoneAtStart(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.stop()
	server.SetMissing(true)
	l = live(t, server, m, []string{"p"}, nil)
	eventually(t, func() string {
		if got := l.sorted("p"); !slices.Equal(got, []string{"gap 12-", "u11/11/DELETED+i", "u12/12/DELETED+i"}) {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
	server.SetMissing(false)
	server.Write("a", false)
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) != 4 || len(l.gapRecords()) != 1 {
			return fmt.Sprintf("got %v", got)
		}
		return ""
	})
}

// Whatever is captured is captured with what was handed over in the same moment.
func TestCaptureHoldsWhatWasHandedOver(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(13)
	l.stop()
	for _, name := range []string{"a", "b", "c"} {
		server.Write(name, true)
	}
	server.Compact()
	l = live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
	eventually(t, func() string {
		if n := len(l.sorted("p")); n != 2 { // a gap and a DELETED
			return fmt.Sprint(n)
		}
		return ""
	})
	l.capture()
	l.crash()
	first := l.sorted("p")[1:]
	l = live(t, server, m, []string{"p"}, nil)
	l.watching(17)
	rest := slices.DeleteFunc(l.sorted("p"), func(id string) bool { return strings.HasPrefix(id, "gap") })
	if got := slices.Sorted(slices.Values(append(first, rest...))); !slices.Equal(got, []string{
		"u11/11/DELETED+i", "u12/12/DELETED+i", "u13/13/DELETED+i",
	}) {
		t.Errorf("got %v", got)
	}
}

// Objects that came and went with the resource while no watch was open are not known: a gap covers them, once.
func TestEmptyResourceGoneAtStart(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	server.Write("a", true)
	l.watching(12)
	l.stop()
	server.Write("b", false)
	server.SetMissing(true)
	for _, want := range [][]string{{"gap 12-"}, nil} {
		l = live(t, server, m, []string{"p"}, nil)
		l.reaches(StateMissing)
		l.stop()
		l.expect("p", want...)
	}
}

// Stopped in its first state, and the resource is gone at the next start: a gap covers what was not sent.
func TestGoneAfterAStopInTheFirstState(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
	eventually(t, func() string { return map[bool]string{true: "nothing was sent"}[len(l.sorted("p")) == 0] })
	id := strings.TrimSuffix(l.sorted("p")[0], "ADDED+s")
	l.stop()
	server.SetMissing(true)
	l = live(t, server, m, []string{"p"}, nil)
	l.expect("p", "gap -", id+"DELETED+i")
}

// Stopped in its first state, and then killed before anything is read: all that was sent is known, so there is no gap.
func TestKilledAfterAStopInTheFirstState(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
	eventually(t, func() string { return map[bool]string{true: "nothing was sent"}[len(l.sorted("p")) == 0] })
	first := l.sorted("p")[0]
	l.stop()
	server.Deny(403, 1<<30)
	l = live(t, server, m, []string{"p"}, nil)
	l.capture()
	l.crash()
	server.Deny(0, 0)
	l = live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.snapshotsDone()
	if got := l.sorted("p"); len(got) != 1 || got[0] == first {
		t.Errorf("sent %s, and after the kill %v", first, got)
	}
}

// A kill in the first state begins its snapshot anew, also if the next run is stopped before it sends anything. Later stops do not.
func TestStopsInTheFirstStateBehindAKill(t *testing.T) {
	for _, idle := range []bool{false, true} {
		t.Run(map[bool]string{false: "at once", true: "behind an idle run"}[idle], func(t *testing.T) {
			server, m := things(t, "a", "b", "c", "d", "e"), newMemory() // 11 to 15
			run := func(after int) *life {
				l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = after })
				eventually(t, func() string { return map[bool]string{true: "it goes on"}[!l.blocked()] })
				return l
			}
			l := run(1)
			killed := l.marks["p"][0].Snapshot
			l.capture()
			l.crash()
			if idle {
				server.Deny(403, 1<<30)
				live(t, server, m, []string{"p"}, nil).stop()
				server.Deny(0, 0)
			}
			l = run(2)
			started := l.marks["p"][0].Snapshot
			if started == killed {
				t.Error("the snapshot was not begun anew")
			}
			l.stop()
			sent := l.sorted("p")
			l = run(1)
			l.stop()
			sent = append(sent, l.sorted("p")...)
			l = live(t, server, m, []string{"p"}, nil)
			l.watching(15)
			l.snapshotsDone()
			if marks := l.marks["p"]; len(marks) != 1 || marks[0].Phase != delta.Completed || marks[0].Snapshot != started {
				t.Errorf("%d marks, want one: the end of %s", len(marks), started)
			}
			sent = slices.DeleteFunc(append(sent, l.sorted("p")...), func(text string) bool { return strings.HasPrefix(text, "gap") })
			if slices.Sort(sent); !slices.Equal(sent, []string{"u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED+s", "u15/15/ADDED+s"}) {
				t.Errorf("got %v", sent)
			}
		})
	}
}

// Stopped in its first state before the first object, and the resource is gone at the next start: a gap covers what existed meanwhile.
func TestGoneAfterAStopBeforeTheFirstObject(t *testing.T) {
	for _, snapshot := range []delta.Snapshot{delta.SnapshotInitial, delta.SnapshotNever} {
		t.Run(string(snapshot), func(t *testing.T) {
			server, m := things(t), newMemory()
			server.NoWatchList = true
			server.SetMissing(true)
			l := live(t, server, m, []string{"p"}, func(o *Options, l *life) { o.Snapshot, l.after, l.handed = snapshot, 1, 1 })
			eventually(t, func() string {
				if s := l.source.Status()[0]; s.State != StateMissing {
					return fmt.Sprint(s)
				}
				return ""
			})
			server.SetMissing(false)
			server.Write("c", false)
			eventually(t, func() string { return map[bool]string{true: "the first state has not begun"}[!m.only(t).Begun] })
			l.stop()
			server.SetMissing(true)
			l = live(t, server, m, []string{"p"}, func(o *Options, _ *life) { o.Snapshot = snapshot })
			l.expect("p", "gap -")
		})
	}
}

// Stopped in its first state behind the DELETED of all that was sent of it, as a watch-list may bring it; then etcd is restored to before.
func TestRollbackAfterAStopInTheFirstState(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	for id, text := range m.meta {
		var meta Meta
		if err := json.Unmarshal(text, &meta); err != nil {
			t.Fatal(err)
		}
		meta.Position, meta.Complete, meta.Begun, meta.Reading = "", false, true, 12
		m.meta[id], _ = json.Marshal(meta)
		m.known[id] = map[string]delta.Known{}
	}
	server.RollBack(11)
	expectRollback(t, server, m, "p")
}

// Killed in its first state, and the resource is gone at the next start: a gap covers what was sent, once.
func TestGoneAfterAKillInTheFirstState(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory()
	l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 1 })
	eventually(t, func() string { return map[bool]string{true: "nothing was sent"}[len(l.sorted("p")) == 0] })
	l.crash()
	server.SetMissing(true)
	for _, want := range [][]string{{"gap -"}, nil} {
		l = live(t, server, m, []string{"p"}, nil)
		l.expect("p", want...)
		l.reaches(StateMissing)
		l.stop()
		l.expect("p", want...)
	}
}

// Behind a watch that showed every object go there is a gap all the same: others may have come and gone since it ended.
func TestResourceSeenToGo(t *testing.T) {
	server, m := things(t, "a"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	server.Write("a", true)
	l.watching(12)
	server.SetMissing(true)
	l.expect("p", "u11/11/ADDED+s", "u11/12/DELETED", "gap 12-")
}

// What a commit that failed was to write, the next one writes, as it is by then.
func TestFailedCaptureComesAgain(t *testing.T) {
	server, m := things(t, "a", "b", "c"), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(13)
	capture := func() []delta.WatchChange { // nothing is handed over meanwhile
		l.commits.Lock()
		defer l.commits.Unlock()
		return l.source.Capture()
	}
	fail := func() {
		l.commits.Lock()
		defer l.commits.Unlock()
		l.source.Failed()
	}
	if got := capture(); len(got) != 1 || len(got[0].Put) != 3 {
		t.Fatalf("got %+v", got)
	}
	server.Write("a", true) // after it was captured
	server.Write("d", false)
	l.watching(15)
	fail()
	again := capture()
	if len(again) != 1 || len(again[0].Put) != 3 || len(again[0].Remove) != 1 || again[0].Remove[0].Name != "a" {
		t.Fatalf("got %+v", again)
	}
	fail()
	if got := capture(); len(got) != 1 || string(got[0].Meta) != string(again[0].Meta) || len(got[0].Put) != 3 || len(got[0].Remove) != 1 {
		t.Errorf("got %+v, want %+v", got, again)
	}
	l.source.Committed()
	if got := capture(); len(got) != 0 {
		t.Errorf("nothing happened, got %+v", got)
	}
	l.source.Committed()
}

// TestHistoryLost begins with a gap record where there is no state though others had one. So does a life with an older state, behind which
// a configuration may have been edited; what comes since is sent all the same.
func TestHistoryLost(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	m.floor = 1
	lost := func(o *Options, _ *life) { o.HistoryLost = "lost" }
	l := live(t, server, m, []string{"p"}, lost)
	l.expect("p", "gap -11", "u11/11/ADDED+s")
	l.watching(11)
	l.snapshotsDone()
	if gaps := l.gapRecords(); len(gaps) != 1 || gaps[0].Reason != "lost" {
		t.Errorf("gaps %+v", gaps)
	}
	if added := l.delta("u11/11/ADDED+s"); sequence(added) <= 11 { // other filters may have let the object leave in this version
		t.Errorf("the sequence is %d", sequence(added))
	}
	l.stop()
	server.Write("a", false) // 12
	l = live(t, server, m, []string{"p"}, lost)
	l.expect("p", "gap 11-12", "u11/12/MODIFIED")
	if gaps := l.gapRecords(); !gaps[0].Unclean {
		t.Errorf("gaps %+v", gaps[0])
	}
	l.stop()
	server.Write("a", false) // 13
	l = live(t, server, m, []string{"p"}, nil)
	l.expect("p", "u11/13/MODIFIED")
	l.stop()
	l = live(t, server, newMemory(), []string{"p"}, lost) // in a new epoch
	l.expect("p", "gap -13", "u11/13/ADDED+s")
	if added := l.delta("u11/13/ADDED+s"); sequence(added) != 13 {
		t.Errorf("in a new epoch, the sequence is %d", sequence(added))
	}
}

// A run ends while the deletions of a resource that is gone are being sent: what comes back is behind those that were sent, too.
func TestComesBackBehindDeletionsOfTwoRuns(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"p"}, func(_ *Options, l *life) { l.after = 4 })
	l.watching(12)
	server.Write("a", false) // 13
	l.watching(13)
	server.SwitchOff(true) // one DELETED is taken, the other blocks
	eventually(t, func() string {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.handed < 5 {
			return fmt.Sprint("handed ", l.handed, l.got)
		}
		return ""
	})
	l.stop()
	out := l.delta("u11/13/DELETED+i")
	if out == nil { // the other one was first
		out = l.delta("u12/12/DELETED+i")
	}
	l = live(t, server, m, []string{"p"}, nil)
	l.reaches(StateMissing)
	server.SwitchOff(false)
	eventually(t, func() string {
		if l.delta("u11/13/ADDED+s") == nil {
			return fmt.Sprint(l.sorted("p"))
		}
		return ""
	})
	if in := l.delta("u11/13/ADDED+s"); !after(in, sequence(out)) {
		t.Errorf("the DELETED has the sequence %d, and the ADDED behind it %d", sequence(out), sequence(in))
	}
}

// What comes back with an API is sent under another id for transports than before, also without snapshots: they may have seen that.
func TestComesBackInTheSameVersion(t *testing.T) {
	server := things(t)
	l := live(t, server, newMemory(), []string{"p"}, func(o *Options, _ *life) { o.Snapshot = delta.SnapshotNever })
	l.reaches(StateWatching)
	server.Write("a", false) // 11
	l.expect("p", "u11/11/ADDED")
	server.SwitchOff(true)
	l.expect("p", "u11/11/ADDED", "gap 11-", "u11/11/DELETED+i")
	l.reaches(StateMissing)
	server.SwitchOff(false)
	eventually(t, func() string {
		if l.delta("u11/11/ADDED+i") == nil {
			return fmt.Sprint(l.sorted("p"))
		}
		return ""
	})
	if in := l.delta("u11/11/ADDED+i"); in.AsOf == 0 {
		t.Errorf("the ADDED has the id for transports of the first one: %+v", in)
	}
}

// A killed run sent a change that it did not commit, and the resource is gone at the next start: the DELETED is behind that.
func TestGoneAfterAKill(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(11)
	l.snapshotsDone()
	l.capture()
	server.Write("a", false) // 12
	l.expect("p", "u11/11/ADDED+s", "u11/12/MODIFIED")
	sent := l.delta("u11/12/MODIFIED")
	l.crash()
	server.SetMissing(true)
	l = live(t, server, m, []string{"p"}, nil)
	l.expect("p", "gap 11-", "u11/11/DELETED+i")
	if out := l.delta("u11/11/DELETED+i"); !after(out, sequence(sent)) && sequence(out) != sequence(sent) {
		t.Errorf("the MODIFIED had the sequence %d, and the DELETED behind it %d", sequence(sent), sequence(out))
	}
}
