package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// TestModel joins real sources, pipelines and checkpoint, and breaks everything around them by chance: the API server,
// the sinks, the disk, and the process itself, which is killed at any point or ends in peace. Then all heals, and the
// promise is checked, change by change.
func TestModel(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent(),
		goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
	rounds := 2
	if os.Getenv("CI") == "true" { // the time is better spent there
		rounds = 5
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for round := range rounds {
		if round == 1 { // as in a container with one CPU, where goroutines run in another order
			runtime.GOMAXPROCS(1)
		} else {
			runtime.GOMAXPROCS(runtime.NumCPU())
		}
		rapid.Check(t, model)
	}
}

func model(rt *rapid.T) {
	w := newWorld(rt)
	name := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "gadgets:a", "gadgets:b"})
	for range rapid.IntRange(0, 8).Draw(rt, "objects before the start") {
		w.server.Write(name.Draw(rt, "name"), false)
	}
	w.settle(rt)
	w.since = w.server.Version()
	for range rapid.IntRange(1, 25).Draw(rt, "steps") {
		w.step(rt, name)
	}
	w.heal(rt)
	w.check(rt)
}

// world is what a case of the model is made of.
type world struct {
	server *sourcetest.Server
	dir    string
	disk   *disk
	lines  []*line // the pipelines
	since  int     // the version at which every watch had its state, and a commit has it

	run      *run
	restarts int
	seconds  atomic.Int64 // the clock of offsets, which takes a second each time it is read
	compacts bool         // history may be refused
}

// line is one pipeline through every run.
type line struct {
	name    string
	sources []string
	options pipeline.Options
	sink    *script
	joins   int // the run from which on it is configured
	// allowed is how many records may have been sent twice: those acknowledged after the last commit before a kill.
	allowed int
}

// run is one life of the process.
type run struct {
	kept      *state
	sources   []*source.Source
	pipelines []*pipeline.Pipeline
	stop      func()         // watching
	stopAll   func()         // deliveries as well
	watching  sync.WaitGroup // sources
	all       sync.WaitGroup // pipelines
}

const sourceA, sourceB = "things", "gadgets"

func newWorld(rt *rapid.T) *world {
	w := &world{server: sourcetest.New(rt), disk: &disk{}}
	w.server.NoWatchList = rapid.Bool().Draw(rt, "no watch-list")
	w.server.InStream = rapid.Bool().Draw(rt, "410 inside the stream")
	w.compacts = rapid.Bool().Draw(rt, "compactions")
	dir, err := os.MkdirTemp("", "kubeferry-model-")
	if err != nil {
		rt.Fatal(err)
	}
	w.dir = dir
	rt.Cleanup(func() {
		w.kill()
		_ = os.RemoveAll(dir)
	})
	for n := range rapid.IntRange(1, 3).Draw(rt, "pipelines") {
		l := &line{name: fmt.Sprint("p", n), sources: []string{sourceA, sourceB}, sink: newScript(rapid.Uint64().Draw(rt, "seed"))}
		if n > 0 {
			l.sources = rapid.SampledFrom([][]string{{sourceA}, {sourceB}, {sourceA, sourceB}}).Draw(rt, "sources")
			l.joins = rapid.SampledFrom([]int{0, 0, 2}).Draw(rt, "joins with run")
		}
		l.options = pipeline.Options{
			Options:  shape.Options{Name: l.name, Cluster: "c", Format: shape.FormatCloudEventsBinary},
			MaxBytes: int64(rapid.SampledFrom([]int{1 << 10, 4 << 10, 64 << 10}).Draw(rt, "memory")),
			Retry:    pipeline.Retry{Initial: 100 * time.Microsecond, Max: 2 * time.Millisecond},
			Sink:     l.sink, SinkName: "script", DeadLetter: pipeline.NoLetters{},
			Limits: sinks.Limits{
				MaxRecords: rapid.IntRange(1, 5).Draw(rt, "records"), MaxBytes: 1 << 20, Timeout: time.Second,
				Concurrency: rapid.IntRange(1, 3).Draw(rt, "concurrency"), OnePerKey: rapid.Bool().Draw(rt, "one per key"),
			},
			Spill:        rapid.SampledFrom([]bool{true, true, false}).Draw(rt, "spill"),
			MaxDiskBytes: int64(rapid.SampledFrom([]int{6 << 10, 1 << 30}).Draw(rt, "disk")),
		}
		w.lines = append(w.lines, l)
	}
	w.start(rt, 0)
	return w
}

// start begins a run of the process.
func (w *world) start(rt *rapid.T, number int) {
	r := &run{}
	logger := slog.New(slog.DiscardHandler)
	client, err := source.NewClient(&rest.Config{Host: w.server.URL}, false)
	if err != nil {
		rt.Fatal(err)
	}
	loaded := &config.Config{Cluster: "c", StateDir: w.dir}
	r.kept, err = openState(context.Background(), loaded, client, nil, logger)
	if err != nil {
		rt.Fatal(err)
	}
	w.disk.store = r.kept.store
	r.kept.offset = source.NewOffset(r.kept.store.Info().Offset, func() time.Time { return time.Unix(w.seconds.Add(1), 0) })
	r.kept.committer = checkpoint.NewCommitter(w.disk, logger)
	r.kept.committer.Register(w)
	metrics := pipeline.NewMetrics(prometheus.NewRegistry())
	handlers := map[string]*fanOut{sourceA: {committer: r.kept.committer}, sourceB: {committer: r.kept.committer}}
	for _, l := range w.lines {
		if l.joins > number {
			continue
		}
		options := l.options
		spill, maxDisk := options.Spill, options.MaxDiskBytes
		if err := r.kept.setLog(&options, config.Backlog{}); err != nil {
			panic(err)
		}
		options.Spill, options.MaxDiskBytes = spill, maxDisk
		p := pipeline.New(options, metrics, logger)
		r.pipelines = append(r.pipelines, p)
		for _, name := range l.sources {
			handlers[name].pipelines = append(handlers[name].pipelines, p)
		}
	}
	sourceMetrics := source.NewMetrics(prometheus.NewRegistry())
	for name, resource := range map[string]schema.GroupVersionResource{sourceA: sourcetest.Things, sourceB: sourcetest.Gadgets} {
		options := source.Options{
			Name: name, Resources: []schema.GroupVersionResource{resource}, Snapshot: delta.SnapshotInitial,
			Offset:  r.kept.offset,
			Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 1 << 20, Factor: 1},
		}
		handlers[name].setPipelines(&options)
		r.sources = append(r.sources, source.New(client, options, handlers[name], sourceMetrics, logger))
	}
	if err := r.kept.restore(r.sources); err != nil {
		rt.Fatal(err)
	}
	w.disk.set(diskWell) // a run begins with a commit
	if err := r.kept.begin(r.sources, r.pipelines); err != nil {
		rt.Fatal(err)
	}
	watching, stop := context.WithCancel(context.Background())
	delivering, stopAll := context.WithCancel(context.Background())
	r.stop, r.stopAll = stop, stopAll
	for _, p := range r.pipelines {
		r.all.Go(func() { p.Run(delivering) })
	}
	for _, s := range r.sources {
		r.watching.Go(func() { s.Run(watching) })
	}
	w.run = r
}

// kill ends the run as kill -9 does, as far as the state directory shows.
func (w *world) kill() {
	if w.run == nil {
		return
	}
	w.disk.set(diskGone)
	w.run.stop()
	w.run.stopAll()
	w.run.watching.Wait()
	w.run.all.Wait()
	w.run.kept.close()
	w.run = nil
	for _, l := range w.lines {
		l.allowed += l.sink.uncommitted() + l.options.Limits.Concurrency*l.options.Limits.MaxRecords
	}
}

// end ends the run in peace.
func (w *world) end(rt *rapid.T) {
	w.disk.set(diskWell)
	w.run.stop()
	w.run.watching.Wait()
	w.run.stopAll()
	w.run.all.Wait()
	if err := w.run.kept.finish(); err != nil {
		rt.Fatal(err)
	}
	w.run.kept.close()
	w.balance(rt)
	w.run = nil
}

// Capture and Committed make the world a participant of each commit: what was acknowledged before one that succeeds
// must not be sent again, but for what was being settled just then.
func (w *world) Capture(*checkpoint.Commit) {
	for _, l := range w.lines {
		l.sink.capture()
	}
}

func (w *world) Committed(map[string]delta.LogSize) {
	for _, l := range w.lines {
		l.sink.committed()
	}
}

// Failed leaves what was acknowledged since the commit before unsecured.
func (*world) Failed() {}

func (w *world) balance(rt *rapid.T) {
	for _, p := range w.run.pipelines {
		s := p.Stats()
		dead := uint64(0)
		for _, n := range s.Dead {
			dead += n
		}
		if s.Received+s.Restored != s.Filtered+s.Delivered+dead+s.Waiting {
			rt.Errorf("%s does not balance: %+v", p.Name(), s)
		}
	}
}

func (w *world) step(rt *rapid.T, name *rapid.Generator[string]) {
	switch step := rapid.IntRange(0, 20).Draw(rt, "step"); step {
	case 0, 1, 2, 3:
		for range rapid.IntRange(1, 12).Draw(rt, "writes") {
			w.server.Write(name.Draw(rt, "name"), rapid.IntRange(0, 3).Draw(rt, "delete") == 0)
		}
	case 4:
		w.server.Cut(rapid.Bool().Draw(rt, "in mid-line"))
	case 5:
		if w.compacts {
			w.server.Compact()
			w.server.Cut(false)
		}
	case 6:
		w.server.Deny(rapid.SampledFrom([]int{0, 403, 500, 503, 504}).Draw(rt, "denial"), rapid.IntRange(1, 3).Draw(rt, "times"))
		w.server.Cut(false)
	case 7, 8:
		l := w.lines[rapid.IntRange(0, len(w.lines)-1).Draw(rt, "pipeline")]
		l.sink.set(rapid.SampledFrom([]sinkMode{sinkWell, sinkDown, sinkPartly}).Draw(rt, "sink"))
	case 9, 10:
		w.disk.set(rapid.SampledFrom([]diskMode{diskWell, diskFull, diskLies}).Draw(rt, "disk"))
	case 11, 12:
		w.restarts++
		w.kill()
		w.start(rt, w.restarts)
	case 13:
		w.restarts++
		w.end(rt)
		w.start(rt, w.restarts)
	case 14:
		w.run.kept.committer.RequestCommit()
	case 15, 16, 17, 18:
		_ = w.commit() // the disk may refuse
	case 20: // it may be refused: the state is not read, or another one is under way
		name := w.lines[rapid.IntRange(0, len(w.lines)-1).Draw(rt, "snapshot of")].name
		for _, from := range w.run.sources {
			_, _ = from.RequestSnapshot(name, "", false)
		}
	case 19: // let something happen, whatever it is
		w.happen()
	}
	if rapid.Bool().Draw(rt, "wait") { // else what the steps began has hardly begun when the case is over
		w.happen()
	}
	w.balance(rt)
}

// commit writes one at once: by itself there is one in 200 ms, or a second after one that failed, and a case is over long
// before that. To begin a run once more changes nothing.
func (w *world) commit() error { return w.run.kept.committer.Begin() }

// happen waits until something arrives somewhere, but not for long.
func (w *world) happen() {
	before, deadline := w.progress(), time.Now().Add(3*time.Millisecond)
	for w.progress() == before && time.Now().Before(deadline) {
		time.Sleep(100 * time.Microsecond)
	}
}

func (w *world) progress() (n uint64) {
	for _, p := range w.run.pipelines {
		s := p.Stats()
		n += s.Received + s.Delivered
	}
	return n
}

// settle waits until every watch has its state and a commit secured it.
func (w *world) settle(rt *rapid.T) {
	eventually(rt, func() string {
		for _, s := range w.run.sources {
			for _, status := range s.Status() {
				if status.State != source.StateWatching {
					return fmt.Sprintf("%+v", status)
				}
			}
		}
		return ""
	})
	if err := w.commit(); err != nil {
		rt.Fatal(err)
	}
}

// heal ends every fault, and waits until all is delivered.
func (w *world) heal(rt *rapid.T) {
	w.server.Deny(0, 0)
	w.disk.set(diskWell)
	for _, l := range w.lines {
		l.sink.set(sinkWell)
	}
	// All that is before these has been seen when they arrive.
	w.server.Write("last", false)
	w.server.Write("gadgets:last", false)
	eventually(rt, func() string {
		for _, l := range w.lines {
			if l.joins > w.restarts {
				continue
			}
			for _, from := range w.run.sources {
				for _, s := range from.Snapshots(l.name, "") {
					if !s.Done { // it may not have begun
						return fmt.Sprintf("%s: a snapshot is pending: %+v", l.name, s)
					}
				}
			}
			if missing := w.arrived(l); missing != "" {
				return fmt.Sprintf("%s: %s has not arrived: %v\n%+v", l.name, missing, l.sink.ids(), w.run.sources[0].Status())
			}
		}
		for _, p := range w.run.pipelines { // now, since others may have come beside what arrived
			if s := p.Stats(); s.Waiting+s.GapsWaiting > 0 {
				return fmt.Sprintf("%s: %+v", p.Name(), s)
			}
		}
		return ""
	})
	w.settle(rt)
	for _, p := range w.run.pipelines {
		if s := p.Stats(); s.Bytes != 0 || s.OnDisk != 0 {
			rt.Errorf("%s holds what it has settled: %+v", p.Name(), s)
		}
	}
	w.end(rt)
	logs, err := checkpoint.Open(w.dir, func(message string, err error) { rt.Errorf("%s: %v", message, err) })
	if err != nil {
		rt.Fatal(err)
	}
	for name, size := range logs.Logs() {
		flows, err := logs.Flows(name)
		if size.Entries != 0 || size.Bytes != 0 || len(flows) != 0 || err != nil {
			rt.Errorf("the log of %s: %+v, the flows %v, %v", name, size, flows, err)
		}
	}
	if err := logs.Close(); err != nil {
		rt.Fatal(err)
	}
}

// arrived names one of the last objects that did not arrive.
func (w *world) arrived(l *line) string {
	ids := l.sink.ids()
	for _, c := range w.server.History() {
		if c.Name != "last" || !slices.Contains(l.sources, c.Resource) {
			continue
		}
		if !slices.Contains(ids, "c/"+c.UID()+"/"+strconv.Itoa(c.Version)+"/ADDED") {
			return c.ID()
		}
	}
	return ""
}

// gapRange is the range of a gap record.
type gapRange struct {
	from, to int
	lost     bool
}

// check holds what was stored against what happened.
func (w *world) check(rt *rapid.T) {
	history := w.server.History()
	happened := map[string]sourcetest.Change{}
	states := map[string]bool{} // uid/version of each version of an object that existed
	ends := map[string]int{}    // uid → version of its deletion
	for _, c := range history {
		happened[c.ID()] = c
		if c.Type == "DELETED" {
			ends[c.UID()] = c.Version
		} else {
			states[fmt.Sprintf("%s/%d", c.UID(), c.Version)] = true
		}
	}
	for _, l := range w.lines {
		if l.joins > w.restarts {
			continue
		}
		fail := func(format string, args ...any) {
			rt.Errorf("%s: %s\nstored %v\nhistory %v", l.name, fmt.Sprintf(format, args...), l.sink.all(), changeIDs(history))
		}
		gaps := map[string][]gapRange{} // by resource: they hold back nothing
		for _, a := range l.sink.all() {
			if a.kind == "GAP" {
				gaps[a.resource] = append(gaps[a.resource], a.gap)
			}
		}
		stored := map[string]bool{}
		last := map[string]arrival{}  // by object, by their sequence
		ended := map[string]bool{}    // uids whose deletion arrived
		came := map[string]bool{}     // uids of which anything arrived
		state := map[string]arrival{} // by object: what exists
		repeated := 0
		marked := consumer{}
		for _, a := range l.sink.all() {
			marked.take(a)
			if a.kind == "SNAPSHOT" {
				continue
			}
			if stored[a.id] {
				if a.kind != "GAP" && !a.snapshot { // one that begins anew sends what the former one sent
					repeated++
				}
				continue
			}
			stored[a.id] = true
			if a.kind == "GAP" {
				continue
			}
			key := a.resource + "/" + a.name
			explained := slices.ContainsFunc(gaps[a.resource], func(g gapRange) bool {
				return g.from < a.version && a.version <= g.to || a.kind == "DELETED"
			})
			id := strings.TrimPrefix(a.id, "c/")
			switch _, did := happened[id]; {
			case !a.inferred && !a.snapshot && !did:
				fail("%s never happened", a.id)
			case a.inferred && a.kind == "DELETED" && ends[a.uid] == 0:
				fail("%s was not deleted", a.id)
			case (a.inferred || a.snapshot) && !states[fmt.Sprintf("%s/%d", a.uid, a.version)]:
				fail("%s never existed", a.id)
			case a.inferred && !explained && l.joins == 0:
				fail("%s is inferred without a gap", a.id)
			}
			before := last[key]
			switch {
			case a.inferred && a.kind == "DELETED" && ended[a.uid]: // sent again, as it may be after a kill
			// A killed run may have sent it in a snapshot that it began.
			case a.inferred && a.kind == "DELETED" && a.order < before.order && l.joins > 0 && !came[a.uid]:
			case a.order < before.order, a.order == before.order && a.kind == before.kind && !a.snapshot && !a.inferred:
				fail("%s came after %s", a.id, before.id)
			}
			if a.order > before.order {
				last[key] = a
			}
			came[a.uid], ended[a.uid] = true, ended[a.uid] || a.kind == "DELETED"
			switch { // as a consumer would that goes by the sequence
			case a.order < before.order:
			case a.kind != "DELETED":
				state[key] = a
			case state[key].uid == a.uid:
				delete(state, key)
			}
		}
		lost := false
		for _, of := range gaps {
			lost = lost || slices.ContainsFunc(of, func(g gapRange) bool { return g.lost })
		}
		if len(gaps) > 0 && !w.compacts {
			fail("a gap where nothing was refused")
		}
		for _, c := range history {
			if l.joins > 0 || !slices.Contains(l.sources, c.Resource) || c.Version <= w.since || stored["c/"+c.ID()] {
				continue
			}
			if !slices.ContainsFunc(gaps[c.Resource], func(g gapRange) bool { return g.from < c.Version && c.Version <= g.to }) {
				fail("%s is missing", c.ID())
			}
		}
		for _, resource := range l.sources {
			marked.check(w.server.State(schema.GroupVersionResource{Version: "v1", Resource: resource}), resource, fail)
			want := w.server.State(schema.GroupVersionResource{Version: "v1", Resource: resource})
			for _, o := range want {
				key := o.Resource + "/" + o.Name
				if got := state[key]; got.uid != o.UID() || got.version != o.Version {
					fail("the state of %s is %s, want %s/%d", key, got.id, o.UID(), o.Version)
				}
				delete(state, key)
			}
		}
		for key, a := range state {
			if !lost || ends[a.uid] == 0 {
				fail("%s still exists, %s", key, a.id)
			}
		}
		if repeated > l.allowed {
			fail("%d records were sent twice, %d may be", repeated, l.allowed)
		}
	}
}

func changeIDs(history []sourcetest.Change) (ids []string) {
	for _, c := range history {
		ids = append(ids, c.ID())
	}
	return ids
}

// consumer keeps two maxima, as docs/consumers.md says: the highest record of each object, and the highest complete mark.
type consumer map[string]*table // by resource

type table struct {
	objects map[string]arrival
	mark    int
}

func (c consumer) take(a arrival) {
	t := c[a.resource]
	if t == nil {
		t = &table{objects: map[string]arrival{}}
		c[a.resource] = t
	}
	switch {
	case a.kind == "SNAPSHOT" && a.complete:
		t.mark = max(t.mark, a.named)
	case a.kind == "SNAPSHOT", a.kind == "GAP":
	default:
		if before, known := t.objects[a.name]; !known || a.above(before) {
			t.objects[a.name] = a
		}
	}
}

func (a arrival) above(b arrival) bool {
	switch {
	case a.order != b.order:
		return a.order > b.order
	case (a.kind == "DELETED") != (b.kind == "DELETED"):
		return a.kind == "DELETED"
	default:
		return a.named > b.named
	}
}

// check fails unless the table is what exists.
func (c consumer) check(want map[string]sourcetest.Object, resource string, fail func(string, ...any)) {
	t := c[resource]
	if t == nil || t.mark == 0 {
		fail("no snapshot of %s was completed: %+v", resource, t)
		return
	}
	exist := map[string]bool{}
	for _, o := range want {
		exist[o.Name] = true
		if got := t.objects[o.Name]; got.uid != o.UID() || got.version != o.Version || got.kind == "DELETED" || max(got.order, got.named) < t.mark {
			fail("who goes by the marks has %+v of %s below %d, want %s/%d", got, o.Name, t.mark, o.UID(), o.Version)
		}
	}
	for name, got := range t.objects {
		if !exist[name] && got.kind != "DELETED" && max(got.order, got.named) >= t.mark {
			fail("who goes by the marks has %+v of %s, which does not exist; the mark is at %d", got, name, t.mark)
		}
	}
}

// disk is a store that can fail.
type disk struct {
	store *checkpoint.Store
	mu    sync.Mutex
	mode  diskMode
}

type diskMode int

const (
	diskWell diskMode = iota
	diskFull
	diskLies // writes, and returns an error
	diskGone // the process is dead
)

var errDisk = errors.New("no space left on device")

func (d *disk) set(mode diskMode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mode = mode
}

func (d *disk) Commit(c *checkpoint.Commit) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch d.mode {
	case diskFull, diskGone:
		return errDisk
	case diskLies:
		return errors.Join(errDisk, d.store.Commit(c))
	default:
		return d.store.Commit(c)
	}
}

func (d *disk) Logs() map[string]delta.LogSize { return d.store.Logs() }
func (d *disk) Info() checkpoint.Info          { return d.store.Info() }

// arrival is a record that a sink acknowledged.
type arrival struct {
	id, kind, resource, name, uid string
	version, order                int // order is the sequence
	snapshot, inferred            bool
	compared                      bool // with the previous version
	gap                           gapRange
	named                         int  // the sequence of the snapshot
	complete                      bool // of a mark
}

func (a arrival) String() string {
	text := strings.TrimPrefix(a.id, "c/")
	if a.snapshot {
		text += "+s"
	}
	if a.inferred {
		text += "+i"
	}
	return text
}

// script is a sink that answers as a test sets it.
type script struct {
	mu     sync.Mutex
	mode   sinkMode
	random *rand.Rand
	stored []arrival
	// taken and secured are how much was stored when the last commit captured, and the last that succeeded did.
	taken, secured int
}

type sinkMode int

const (
	sinkWell sinkMode = iota
	sinkDown
	sinkPartly
)

func newScript(seed uint64) *script { return &script{random: rand.New(rand.NewPCG(seed, 1))} }

func (s *script) set(mode sinkMode) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *script) capture() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = len(s.stored)
}

func (s *script) committed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secured = s.taken
}

// uncommitted is how much was stored since the last commit.
func (s *script) uncommitted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.stored) - s.secured
}

func (s *script) ids() (ids []string) {
	for _, a := range s.all() {
		ids = append(ids, a.id)
	}
	return ids
}

func (s *script) all() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.stored)
}

func (s *script) Deliver(_ context.Context, batch []sinks.Record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	down := sinks.Transient(sinks.ReasonUnavailable, errors.New("503"))
	if s.mode == sinkDown {
		return down
	}
	errs, failed := make([]error, len(batch)), map[string]bool{}
	for n, record := range batch {
		if s.mode == sinkPartly && (failed[record.Key] || s.random.IntN(3) == 0) {
			errs[n], failed[record.Key] = down, true
			continue
		}
		s.stored = append(s.stored, readArrival(record))
	}
	if len(failed) > 0 {
		return &sinks.BatchError{Errs: errs}
	}
	return nil
}

func (*script) Close(context.Context) error { return nil }

func readArrival(r sinks.Record) arrival {
	a := arrival{id: r.ID, kind: r.Fields.Type, resource: r.Fields.Resource, name: r.Fields.Name, uid: r.Fields.UID}
	parts := strings.Split(r.ID, "/")
	a.snapshot = strings.Contains(string(r.Body), `"snapshot":true`)
	a.compared = strings.Contains(string(r.Body), `"patch":[`)
	a.inferred = strings.Contains(string(r.Body), `"inferred":true`)
	if a.kind == "GAP" {
		from, to, _ := strings.Cut(parts[2], "-")
		a.gap.from, a.gap.to = versionOf(from), versionOf(to)
		a.gap.lost = strings.Contains(string(r.Body), `"reason":"lost"`)
		return a
	}
	if a.kind == "SNAPSHOT" {
		a.named, _ = strconv.Atoi(r.Attributes["snapshotsequence"])
		a.complete = strings.Contains(string(r.Body), `"complete":true`)
		return a
	}
	a.version, _ = strconv.Atoi(parts[2])
	a.order, _ = strconv.Atoi(r.Attributes["sequence"])
	a.named, _ = strconv.Atoi(r.Attributes["snapshotsequence"])
	return a
}

// versionOf is the resource version of a sequence: offsets are whole seconds, and a case has far fewer versions than a million.
func versionOf(sequence string) int {
	n, _ := strconv.Atoi(sequence)
	return n % (1 << 20)
}

func eventually(rt *rapid.T, what func() string) {
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		problem := what()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			rt.Fatal(problem)
		}
	}
}
