package source

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// editRun is one run of the process: the real sources, and pipelines that the model makes deliver.
type editRun struct {
	model     *editModel
	disk      *editDisk
	sources   []*Source
	pipelines []*editPipelineRun
	offset    *Offset
	stop      func()

	commits sync.RWMutex // keeps captures and hand-overs apart
	mu      sync.Mutex   // guards what follows, and the pipelines
	handed  int          // how many records sources have handed over
	limit   int          // sources wait once these were so many; below 0 they do not. So a run can end at any place
}

// watches are all that there are now.
func (r *editRun) watches() (all []*watcher) {
	for _, s := range r.sources {
		all = append(all, s.all()...)
	}
	return all
}

// watchesOf are the watches that a pipeline takes from.
func (r *editRun) watchesOf(pipeline string) (all []*watcher) {
	for _, s := range r.sources {
		if slices.Contains(s.options.Pipelines, pipeline) {
			all = append(all, s.all()...)
		}
	}
	return all
}

// exclusive calls do while no state of a watch changes.
func (r *editRun) exclusive(do func()) {
	r.commits.Lock()
	defer r.commits.Unlock()
	do()
}

// capture writes a commit: what watches and pipelines hold in one moment.
func (r *editRun) capture() {
	r.commits.Lock()
	defer r.commits.Unlock()
	for _, s := range r.sources {
		r.disk.forget(s.CaptureEnded())
		r.disk.commit(s.Capture())
	}
	r.disk.offset = r.offset.Capture()
	r.offset.Committed()
	for _, s := range r.sources {
		s.Committed()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.model.offset = max(r.model.offset, r.disk.offset)
	for _, p := range r.pipelines {
		r.disk.logs[p.name] = slices.Clone(p.waiting)
	}
}

// allow raises the limit, or ends it if records is below 0.
func (r *editRun) allow(records int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if records < 0 {
		r.limit = -1
	} else if r.limit >= 0 {
		r.limit += records
	}
}

// limited reports whether sources may have to wait.
func (r *editRun) limited() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.limit >= 0
}

// pass reports whether one more record may be handed over now. r.mu is held.
func (r *editRun) pass() bool {
	if r.limit >= 0 && r.handed >= r.limit {
		return false
	}
	r.handed++
	return true
}

// await waits until a condition holds. It is called with r.mu held.
func (r *editRun) await(ctx context.Context, holds func() bool) error {
	for {
		r.mu.Lock()
		done := holds()
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Microsecond):
		}
	}
}

// happen waits until something is handed over, but not for long.
func (r *editRun) happen() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	r.mu.Lock()
	before := r.handed
	r.mu.Unlock()
	_ = r.await(ctx, func() bool { return r.handed > before })
}

// watching reports whether all watches have their states.
func (r *editRun) watching() bool {
	for _, w := range r.watches() {
		read := false
		r.exclusive(func() { read = w.state.read() })
		if w.outdated || !read || w.health.status().State != StateWatching {
			return false
		}
	}
	return true
}

// pending delivers all that waits. It returns what is still to come, or nothing.
func (r *editRun) pending() string {
	for _, p := range r.pipelines {
		p.deliverAll()
	}
	for _, w := range r.watches() {
		problem := ""
		r.exclusive(func() {
			objects, last := r.model.server.Collection(w.collection.resource, w.collection.namespace, w.collection.labelSelector, w.collection.fieldSelector)
			maps.DeleteFunc(objects, func(_ string, o sourcetest.Object) bool { return !w.selects(o.Namespace) })
			position := versionNumber(strings.TrimPrefix(w.state.Position, "v"))
			switch {
			case w.outdated:
				problem = "it has not ended"
			case !w.state.read() || position < uint64(last):
				problem = fmt.Sprintf("it is at %q, not at %d", w.state.Position, last)
			case w.known().len() != len(objects): // several changes may have the last version
				problem = fmt.Sprintf("it knows %d objects of %d", w.known().len(), len(objects))
			case len(w.state.Snapshots) > 0 || w.state.requested > 0:
				problem = "a snapshot runs"
			}
		})
		if problem != "" {
			return fmt.Sprintf("%s %s in %q: %s; %+v", w.state.Source, w.state.Resource, w.state.Namespace, problem, w.health.status())
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.pipelines {
		if len(p.waiting) > 0 {
			return p.name + " has more to deliver"
		}
	}
	return ""
}

// editHandler joins a source to its pipelines, as app does.
type editHandler struct {
	run       *editRun
	pipelines []*editPipelineRun
}

var _ Handler = (*editHandler)(nil)

func (h *editHandler) Update(change func()) {
	h.run.commits.RLock()
	defer h.run.commits.RUnlock()
	change()
}

func (h *editHandler) Exclusive(do func()) { h.run.exclusive(do) }

func (h *editHandler) Commit(context.Context) error {
	h.run.capture()
	return nil
}

func (h *editHandler) Delta(ctx context.Context, d *delta.Delta, to Recipients, record func(PipelineSet)) error {
	if err := h.run.await(ctx, h.run.pass); err != nil {
		return err
	}
	h.Update(func() {
		h.run.mu.Lock()
		defer h.run.mu.Unlock()
		var passed PipelineSet
		for n, p := range h.pipelines {
			if !to.Pipelines.Has(n) {
				continue
			}
			sent, passes := p.shape(to.For(n, d, d), to.Have.Has(n))
			if passes {
				passed |= 1 << n
			}
			if sent != nil && !to.RecordOnly.Has(n) {
				p.take(editRecord{delta: sent})
			}
		}
		record(passed)
	})
	return nil
}

func (h *editHandler) Gap(ctx context.Context, _ *delta.Gap, record func()) error {
	if err := h.run.await(ctx, h.run.pass); err != nil {
		return err
	}
	h.Update(record)
	return nil
}

func (h *editHandler) Recipient(n int) Recipient { return editRecipient{h, h.pipelines[n]} }

// editRecipient is one pipeline of a source.
type editRecipient struct {
	*editHandler
	to *editPipelineRun
}

func (r editRecipient) Offer(_ context.Context, d *delta.Delta, have bool, record func(bool)) bool {
	return r.offer(func() {
		sent, passes := r.to.shape(d, have)
		if sent != nil {
			r.to.take(editRecord{delta: sent})
		}
		record(passes)
	})
}

func (r editRecipient) OfferMark(m *delta.Mark, record func()) bool {
	return r.offer(func() {
		r.to.take(editRecord{mark: m})
		record()
	})
}

// offer calls take if there is room.
func (r editRecipient) offer(take func()) (ok bool) {
	r.Update(func() {
		r.run.mu.Lock()
		defer r.run.mu.Unlock()
		if ok = r.to.hasRoom() && r.run.pass(); ok {
			take()
		}
	})
	return ok
}

func (r editRecipient) Room(ctx context.Context) error { return r.run.await(ctx, r.to.hasRoom) }

func (r editRecipient) Settled(ctx context.Context, _ string) error {
	last := -1
	return r.run.await(ctx, func() bool {
		if last < 0 {
			last = r.to.taken
		}
		return len(r.to.waiting) == 0 || r.to.waiting[0].number > last
	})
}

func (editRecipient) Undelivered(string) (int, string) { return 0, "" }

func (r editRecipient) Lacking(watch string, sequence uint64) Lacking {
	r.run.mu.Lock()
	defer r.run.mu.Unlock()
	return Lacking{Objects: slices.Clone(r.to.dead[watch][sequence])}
}

// editRecord is a record that waits, or was delivered: a delta or a mark.
type editRecord struct {
	number int
	delta  *delta.Delta
	mark   *delta.Mark
}

// subject is <resource>:<namespace>/<name> of an object. A mark has none.
func (r *editRecord) subject() string {
	if r.mark != nil {
		return ""
	}
	return r.delta.Resource.Resource + ":" + r.delta.Object.Namespace() + "/" + r.delta.Object.Name()
}

// id is what a broker deduplicates by.
func (r *editRecord) id() string {
	if r.mark != nil {
		return r.mark.ID("c")
	}
	return fmt.Sprint(r.delta.ID("c"), "/", r.delta.Sequence, "/", r.delta.SnapshotSequence)
}

// editPipelineRun is a pipeline in a run. The run's mutex guards it.
type editPipelineRun struct {
	editPipeline
	run      *editRun
	consumer *editConsumer
	waiting  []editRecord                   // in the order in which they came
	taken    int                            // the number of the last one
	room     int                            // how many may wait before a snapshot waits
	dead     map[string]map[uint64][]string // REST paths, by watch and by the sequence of the snapshot
}

// hasRoom reports whether the pipeline takes a record of a snapshot now.
func (p *editPipelineRun) hasRoom() bool {
	return len(p.waiting) < p.room && (p.run.limit < 0 || p.run.handed < p.run.limit)
}

// shape returns what the pipeline sends of a delta, and whether its filters let the object pass, as package shape does.
func (p *editPipelineRun) shape(d *delta.Delta, had bool) (sent *delta.Delta, passes bool) {
	if d.FinalStateUnknown || editFilters[p.filter](d.Object.Name(), versionNumber(strings.TrimPrefix(d.Object.ResourceVersion(), "v"))) {
		return d, true
	}
	if had && p.onLeave && (d.Type != delta.Added || d.Snapshot) {
		left := *d
		left.Type = delta.Deleted
		return &left, false
	}
	return nil, false
}

// take adds a record to those that wait.
func (p *editPipelineRun) take(e editRecord) {
	p.taken++
	e.number = p.taken
	p.waiting = append(p.waiting, e)
}

// deliver sends a record to the broker: the first one that waits of some object, or a mark. The acknowledgement may be lost, and then it is sent
// again. The record may also become a dead letter.
func (p *editPipelineRun) deliver(m *editModel) {
	which, luck := m.draw("record", 20), m.draw("luck", 19)
	p.run.mu.Lock()
	defer p.run.mu.Unlock()
	var first []int
	subjects := map[string]bool{}
	for n, e := range p.waiting {
		if subject := e.subject(); subject == "" || !subjects[subject] {
			subjects[subject] = true
			first = append(first, n)
		}
	}
	if len(first) == 0 {
		return
	}
	n := first[which%len(first)]
	e := p.waiting[n]
	if luck == 0 && e.mark == nil {
		m.note("%s: %s dies", p.name, shortID(e.delta))
		p.die(e)
	} else {
		p.consumer.store(e)
	}
	if luck != 1 {
		p.waiting = slices.Delete(p.waiting, n, n+1)
	}
}

// die makes a record a dead letter.
func (p *editPipelineRun) die(e editRecord) {
	p.consumer.die(e)
	if p.dead[e.delta.Watch] == nil {
		p.dead[e.delta.Watch] = map[uint64][]string{}
	}
	dead := p.dead[e.delta.Watch]
	dead[e.delta.SnapshotSequence] = append(dead[e.delta.SnapshotSequence], e.delta.Ref().Path())
}

// deliverAll delivers all that waits.
func (p *editPipelineRun) deliverAll() {
	p.run.mu.Lock()
	defer p.run.mu.Unlock()
	for _, e := range p.waiting {
		p.consumer.store(e)
	}
	p.waiting = nil
}
