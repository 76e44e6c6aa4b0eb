package source

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// TestEditModel edits the configuration at random, between runs that are stopped, killed, or lose their state. Around that happens whatever an
// API server, a sink and a consumer do. Whenever all is delivered, the table of each pipeline must be what the API server has and the pipeline
// selects. The consumers make the tables by the rules of docs/consumers.md. What they do after an edit is what docs/operations.md says.
//
// This file draws a history, and compares the tables. editconfig_test.go has the configuration and the kinds of edits, editrun_test.go a run
// with the real sources, and editconsumer_test.go a consumer.
//
// 4,000 histories: go test ./source -run TestEditModel -rapid.checks=1000
func TestEditModel(t *testing.T) {
	for part := range 4 { // most of the time is spent waiting
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, editHistory)
		})
	}
}

// editHistory draws a history: some runs, and what happens in between. It ends with a run in which all is delivered.
func editHistory(rt *rapid.T) {
	m := newEditModel(rt)
	for n := range m.draw("runs", 4) + 1 {
		if n > 0 && m.draw("edit", 3) > 0 {
			m.edit()
		}
		m.start()
		for range m.draw("steps", 12) {
			m.step()
		}
		if m.draw("quiet", 1) == 0 {
			m.quiet()
		}
		m.end()
		m.meanwhile()
	}
	m.start()
	m.quiet()
}

// editModel is a cluster, a state directory and the consumers. The goroutine of the test draws all that happens; but the sources run by
// themselves, so the same draws may become another history.
type editModel struct {
	rt        *rapid.T
	server    *sourcetest.Server
	client    *Client
	config    editConfig
	former    *editConfig // before the last edit
	kind      int         // most edits of this history are of this kind
	disk      *editDisk
	older     []*editDisk              // copies of the disk that a standby may have
	offset    uint64                   // that the Lease names
	seconds   atomic.Int64             // the time
	run       *editRun                 // nil between two runs
	lost      bool                     // the next run goes on with an older copy, or with nothing
	consumers map[string]*editConsumer // by pipeline
	story     []string                 // what happened, for the message of a failure
}

// note adds a line to the story, with the resource version at which it happens.
func (m *editModel) note(format string, args ...any) {
	m.story = append(m.story, fmt.Sprintf("%d: ", m.server.Version())+fmt.Sprintf(format, args...))
}

func (m *editModel) fail(format string, args ...any) {
	m.rt.Fatalf("%s\nwhat happened, and at which resource version:\n%s\n", fmt.Sprintf(format, args...), strings.Join(m.story, "\n"))
}

// editDisk is what a commit holds: the state of watches, and by pipeline the records that wait.
type editDisk struct {
	*memory
	logs map[string][]editRecord
}

func newEditDisk() *editDisk {
	return &editDisk{memory: newMemory(), logs: map[string][]editRecord{}}
}

func (d *editDisk) clone() *editDisk {
	c := newEditDisk()
	c.meta, c.offset, c.clean = maps.Clone(d.meta), d.offset, d.clean
	for id, known := range d.known {
		c.known[id] = maps.Clone(known)
	}
	for name, log := range d.logs {
		c.logs[name] = slices.Clone(log)
	}
	return c
}

func newEditModel(rt *rapid.T) *editModel {
	m := &editModel{rt: rt, server: sourcetest.New(rt), disk: newEditDisk(), consumers: map[string]*editConsumer{}}
	m.server.Labels = func(o sourcetest.Object) labels.Set { return labels.Set{"tier": []string{"web", "db"}[o.Version/2%2]} }
	m.server.InStream = rapid.Bool().Draw(rt, "410 inside the stream")
	m.server.TextVersions = rapid.IntRange(0, 9).Draw(rt, "text versions") == 0
	client, err := NewClient(&rest.Config{Host: m.server.URL}, false)
	if err != nil {
		rt.Fatal(err)
	}
	m.client = client
	rt.Cleanup(m.kill)
	m.config = editConfig{
		sources: []editSource{
			{name: "s", resources: []schema.GroupVersionResource{sourcetest.Things}},
			{name: "t", resources: []schema.GroupVersionResource{sourcetest.Gadgets}},
		},
		pipelines: []editPipeline{{name: "p", sources: []string{"s", "t"}, filter: "all", onLeave: true}, {name: "q", sources: []string{"s"}, filter: "all"}},
	}
	m.kind = m.draw("kind of edits", len(edits)-1)
	for range m.draw("edits before the first run", 4) {
		m.edit()
	}
	m.write(6)
	return m
}

// draw draws a number from 0 to most.
func (m *editModel) draw(label string, most int) int {
	return rapid.IntRange(0, most).Draw(m.rt, label)
}

// write changes some objects.
func (m *editModel) write(most int) {
	for range m.draw("writes", most) {
		name := rapid.SampledFrom([]string{"ns/a", "ns/b", "red/a", "red/c", "blue/b", "gadgets:ns/a", "gadgets:red/b", "gadgets:blue/a"}).Draw(m.rt, "object")
		remove := m.draw("delete", 2) == 0
		m.note("write %s, delete: %v", name, remove)
		m.server.Write(name, remove)
	}
}

// meanwhile is what happens between two runs.
func (m *editModel) meanwhile() {
	m.write(4)
	if m.draw("compact", 3) == 0 {
		m.note("the history is compacted")
		m.server.Compact()
	}
}

// step is one thing that happens in a run.
func (m *editModel) step() {
	m.seconds.Add(int64(m.draw("seconds", 1)))
	switch m.draw("step", 14) {
	case 0, 1, 2:
		m.write(3)
	case 3:
		m.note("ns/a and ns/b expire")
		m.server.Expire("a", "b")
	case 4:
		m.server.Cut(m.draw("in mid-line", 1) == 0)
	case 5:
		m.note("the history is compacted, and watches are cut")
		m.server.Compact()
		m.server.Cut(false)
	case 6, 7, 8, 9:
		m.run.pipelines[m.draw("pipeline", len(m.run.pipelines)-1)].deliver(m)
	case 10:
		m.note("a commit, number %d", len(m.older))
		m.run.capture()
		m.run.exclusive(func() { m.older = append(m.older, m.disk.clone()) })
	case 11: // it may be refused: the state is not read, or another one is under way
		p := m.run.pipelines[m.draw("pipeline", len(m.run.pipelines)-1)]
		m.note("%s: a snapshot is requested: %v", p.name, m.requestSnapshots(p.name))
	case 12:
		m.restore()
	case 13:
		m.run.allow(m.draw("records", 5))
	case 14:
		for _, c := range m.consumers {
			c.step(m)
		}
	}
	if m.draw("wait", 1) == 0 {
		m.run.happen()
	}
}

// requestSnapshots requests all snapshots that a pipeline can have.
func (m *editModel) requestSnapshots(pipeline string) (err error) {
	for _, s := range m.run.sources {
		if _, refused := s.RequestSnapshot(pipeline, "", false); refused != nil {
			err = refused
		}
	}
	return err
}

// restore takes etcd back to a backup, plainly or with a raised version, while the watches are open. All of them notice that before anything is
// written again: later it could not be seen. Nor could it be seen with a raised version while it is in doubt what was sent, or where a selector
// may have let an object in.
func (m *editModel) restore() {
	if m.server.TextVersions || m.run.limited() || !m.run.watching() {
		return
	}
	m.run.capture()
	lowest, doubts, plainly := uint64(m.server.Version()), false, m.draw("plainly", 2) > 0
	for _, w := range m.run.watches() {
		m.run.exclusive(func() {
			lowest = min(lowest, w.state.Seen)
			doubts = doubts || len(w.state.Doubt) > 0
			plainly = plainly || len(w.state.Snapshots) > 0 || w.options.LabelSelector+w.options.FieldSelector != ""
		})
	}
	if lowest <= 11 || doubts {
		return
	}
	backup := m.draw("backup", int(lowest)-11) + 10
	now := backup
	if !plainly {
		now += 2000
	}
	m.note("etcd is restored to %d, as %d", backup, now)
	m.server.Away(func() { m.server.Restore(backup, now-backup) })
	m.await(func() string {
		for _, w := range m.run.watches() {
			noticed := false
			m.run.exclusive(func() {
				noticed = w.state.Seen <= uint64(now) && (plainly || w.state.read() && versionNumber(w.state.Position) >= uint64(now))
			})
			if !noticed {
				time.Sleep(time.Millisecond)
				m.server.Cut(false) // it may have looked before, and be open
				return fmt.Sprintf("%s has not noticed that etcd was restored", w.id)
			}
		}
		return ""
	})
}

// start begins a run with the configuration.
func (m *editModel) start() {
	m.seconds.Add(1)
	r := &editRun{model: m, disk: m.disk, limit: -1}
	if m.draw("limit", 2) == 0 {
		r.limit = m.draw("records", 6)
	}
	for _, p := range m.config.pipelines {
		if m.consumers[p.name] == nil {
			m.consumers[p.name] = newEditConsumer()
		}
		r.pipelines = append(r.pipelines, &editPipelineRun{
			editPipeline: p, run: r, consumer: m.consumers[p.name], waiting: slices.Clone(m.disk.logs[p.name]), room: 1 + m.draw("room", 5),
			dead: map[string]map[uint64][]string{},
		})
	}
	offset := NewOffset(max(m.disk.offset, m.offset), func() time.Time { return time.Unix(m.seconds.Load(), 0) })
	for _, from := range m.config.sources {
		options := from.options()
		options.Offset, options.HistoryLost = offset, m.lost
		h := &editHandler{run: r}
		for _, p := range r.pipelines {
			if slices.Contains(p.sources, from.name) {
				if p.onLeave {
					options.Announcing |= 1 << len(h.pipelines)
				}
				h.pipelines = append(h.pipelines, p)
				options.Pipelines, options.Filters = append(options.Pipelines, p.name), append(options.Filters, p.filter)
			}
		}
		if len(h.pipelines) > 0 {
			r.sources = append(r.sources, New(m.client, options, h, NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler)))
		}
	}
	m.noteStale(r)
	if _, err := Restore(m.disk, r.sources...); err != nil {
		m.rt.Fatal(err)
	}
	m.lost, m.disk.clean, r.offset = false, false, offset
	m.note("a run begins, of which %d records may come at first (-1 is all): %v", r.limit, m.config)
	m.run = r
	r.capture()
	m.forgetOthers()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, s := range r.sources {
		running.Go(func() { s.Run(ctx) })
	}
	r.stop = func() {
		cancel()
		running.Wait()
	}
}

// forgetOthers forgets the watches that no source has, as app does behind the first commit of a run.
func (m *editModel) forgetOthers() {
	var has []string
	for _, s := range m.run.sources {
		has = append(has, s.WatchIDs()...)
	}
	for id := range maps.Clone(m.disk.meta) {
		if !slices.Contains(has, id) {
			m.disk.forget([]string{id})
		}
	}
}

// end ends the run in one of several ways.
func (m *editModel) end() {
	switch m.draw("end", 5) {
	case 0, 1:
		m.kill()
		m.note("the run was killed")
	case 2:
		m.kill()
		m.lost, m.disk = true, newEditDisk()
		if n := m.draw("copy", len(m.older)); n < len(m.older) {
			m.disk = m.older[n].clone()
			m.note("the run was killed, and the copy %d is left", n)
		} else {
			m.note("the run was killed, and nothing is left of its state")
		}
		m.disk.clean = false
		for _, c := range m.consumers {
			c.stale = map[string]bool{"things": true, "gadgets": true} // which watches there were is not known any more
		}
	default:
		m.run.stop()
		m.run.capture()
		m.run, m.disk.clean = nil, true
		m.note("the run was stopped")
	}
}

// kill ends the run, if there is one; what no commit has is forgotten.
func (m *editModel) kill() {
	if m.run != nil {
		m.run.stop()
		m.run = nil
	}
}

// await waits until what returns nothing.
func (m *editModel) await(what func() string) {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Microsecond) {
		problem := what()
		if problem == "" {
			return
		}
		if time.Now().After(deadline) {
			m.fail("%s", problem)
		}
	}
}

// quiet waits until all is delivered, does what docs/operations.md and docs/consumers.md say of some edits, and compares the tables.
func (m *editModel) quiet() {
	m.run.allow(-1)
	m.await(m.run.pending)
	for _, p := range m.run.pipelines {
		p.consumer.readAll()
		p.consumer.removeStale(m.run.watchesOf(p.name))
		m.compareNames(p)
		leavesInSilence := p.filter != "all" && !p.onLeave
		if p.consumer.lacks || leavesInSilence {
			m.await(func() string { // a watch that was cut may begin one itself meanwhile
				if err := m.requestSnapshots(p.name); err != nil {
					m.await(m.run.pending)
					return err.Error()
				}
				return ""
			})
			m.await(m.run.pending)
			p.consumer.lacks = false
		}
	}
	for _, p := range m.run.pipelines {
		p.consumer.readAll()
		m.compare(p)
	}
}

// compareNames fails if the table of a pipeline has an object that does not exist. The pipeline may lack objects that pass its filters since an
// edit of these, and may have others that pass no longer.
func (m *editModel) compareNames(p *editPipelineRun) {
	exist := map[string]bool{}
	for _, from := range m.config.sources {
		for _, resource := range from.resources {
			for _, o := range m.server.State(resource) {
				if slices.Contains(p.sources, from.name) && from.selects(m.server, o) {
					exist[o.Resource+":"+o.Namespace+"/"+o.Name+" "+o.UID()] = true
				}
			}
		}
	}
	for subject, object := range p.consumer.table() {
		uid, _, _ := strings.Cut(object, "/")
		if !exist[subject+" "+uid] && !p.consumer.lacksDead(subject) {
			m.fail("the table of %s has %s %s, which does not exist\n%s", p.name, subject, object, p.consumer)
		}
	}
}

// compare fails unless the table of a pipeline has all that exists and is selected, in its present version, and nothing else.
func (m *editModel) compare(p *editPipelineRun) {
	want := map[string]string{}
	for _, from := range m.config.sources {
		if !slices.Contains(p.sources, from.name) {
			continue
		}
		for _, resource := range from.resources {
			for _, o := range m.server.State(resource) {
				if from.selects(m.server, o) && editFilters[p.filter](o.Name, uint64(o.Version)) {
					want[o.Resource+":"+o.Namespace+"/"+o.Name] = fmt.Sprintf("%s/%d", o.UID(), o.Version)
				}
			}
		}
	}
	got := p.consumer.table()
	for subject := range p.consumer.died { // docs/consumers.md: what the table lacks
		if p.consumer.lacksDead(subject) {
			delete(want, subject)
			delete(got, subject)
		}
	}
	if !maps.Equal(got, want) {
		m.fail("the table of %s\n has  %v\n want %v\n%s", p.name, got, want, p.consumer)
	}
}

// noteStale notes of which resources rows may stay for ever, as docs/consumers.md says: there was a watch that the run does not have, and no mark
// says so. The pipeline does not take its source any more, or it has another watch of some of the same.
func (m *editModel) noteStale(r *editRun) {
	_ = m.disk.Watches(func(id string, text []byte) error {
		var last Meta
		if err := json.Unmarshal(text, &last); err != nil {
			m.rt.Fatal(err)
		}
		resource, _ := delta.ParseResource(last.Resource)
		for _, pipeline := range last.Pipelines {
			takes, same, overlaps := false, false, false
			for _, w := range r.watchesOf(pipeline) {
				takes = takes || w.state.Source == last.Source
				same = same || w.id == id
				overlaps = overlaps || w.state.Resource == last.Resource && overlap(w.state.Namespace, last.Namespace)
			}
			if !same && (!takes || overlaps) {
				m.consumers[pipeline].stale[resource.Resource] = true
			}
		}
		return nil
	})
}
