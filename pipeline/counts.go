package pipeline

import (
	"maps"
	"slices"
	"time"
)

// Counts counts each delta once per stage, so that
//
//	Received + Restored = Filtered + Delivered + Dead + Waiting
//
// holds whenever the pipeline's mutex is free.
type Counts struct {
	Received  uint64 `json:"received"`
	Restored  uint64 `json:"restored"`
	Filtered  uint64 `json:"filtered"`
	Delivered uint64 `json:"delivered"`
	// Dead is by reason.
	Dead map[string]uint64 `json:"dead"`
	// Waiting counts the deltas that are not settled.
	Waiting uint64 `json:"waiting"`
	// Gaps and marks of snapshots are counted apart from the deltas.
	GapsWaiting uint64 `json:"gapsWaiting"`
	GapsSettled uint64 `json:"-"`
	// filteredBy are the parts of Filtered, by the index of the filter; the last one is of a body that is null.
	filteredBy []uint64
	// successes counts all that was acknowledged.
	successes uint64
	// firstOfRun is the number after those of the last run.
	firstOfRun uint64
	// unreadable is the number after the last entry of the log that could not be read: it may have been of any watch.
	unreadable uint64
	// watches are what waits of each watch, and what its snapshot lacks.
	watches map[string]*watchCount
}

// watchCount counts what waits of a watch.
type watchCount struct {
	// before counts the items with lower numbers than since, and after the others.
	before, after int
	// since is the next number at the last call of Settled, or that of the first item of this run.
	since uint64
	// snapshots counts the records and marks of snapshots, of either.
	snapshots int
	lacking
}

// lacking is what the snapshot with a sequence lacks.
type lacking struct {
	sequence uint64
	// first is the number of the first item that names it.
	first uint64
	// dead are the objects whose last record became a dead letter, by their REST paths.
	dead map[string]struct{}
	// more is set if there are others: too many, or a filter kept back what the pipeline has.
	more bool
	// markDied is set if the mark became a dead letter.
	markDied bool
}

// maxDead is how many objects are remembered whose records became dead letters: one more than a mark names.
const maxDead = 101

func (c *Counts) watch(id string) *watchCount {
	w := c.watches[id]
	if w == nil {
		w = &watchCount{since: c.firstOfRun}
		c.watches[id] = w
	}
	return w
}

// snapshot returns what the snapshot lacks that a record names, which has a number; nil if it names none, or one before the last.
func (w *watchCount) snapshot(sequence, seq uint64) *lacking {
	if sequence > w.sequence {
		w.lacking = lacking{sequence: sequence, first: seq}
	}
	if sequence == 0 || sequence < w.sequence {
		return nil
	}
	return &w.lacking
}

// countBefore returns whether all items of a watch are settled that have lower numbers than the next one.
func (c *Counts) countBefore(watch string, next uint64) (settled func() bool) {
	w, unknown := c.watch(watch), c.watch("") // of an entry of the log that cannot be read it is not known of which watch it is
	w.before, w.after, w.since = w.before+w.after, 0, next
	return func() bool { return w.before+unknown.before == 0 }
}

func (c *Counts) take(i *item) {
	c.takeOfWatch(i)
	if i.notice() {
		c.GapsWaiting++
		return
	}
	c.Received++
	c.Waiting++
}

func (c *Counts) takeOfWatch(i *item) {
	w := c.watch(i.watch)
	w.snapshot(i.snapshotSequence, i.seq)
	if i.ofSnapshot() {
		w.snapshots++
	}
	if i.seq < w.since {
		w.before++
	} else {
		w.after++
	}
}

// spoil notes that a snapshot lacks an object that exists.
func (c *Counts) spoil(watch string, sequence uint64) {
	if s := c.watch(watch).snapshot(sequence, 0); s != nil {
		s.more = true
	}
}

// settleOfWatch counts an item as settled for its watch.
func (c *Counts) settleOfWatch(i *item, died bool) {
	w := c.watch(i.watch)
	if i.watch == "" {
		c.unreadable = max(c.unreadable, i.seq+1)
	}
	if i.seq < w.since {
		w.before--
	} else {
		w.after--
	}
	if i.ofSnapshot() {
		w.snapshots--
	}
	s := w.snapshot(i.snapshotSequence, i.seq)
	switch {
	case s == nil, !died && len(s.dead) == 0:
	case i.mark != nil:
		s.markDied = s.markDied || died
	case !died:
		delete(s.dead, i.Ref.Path())
	case len(s.dead) < maxDead:
		if s.dead == nil {
			s.dead = map[string]struct{}{}
		}
		s.dead[i.Ref.Path()] = struct{}{}
	default:
		s.more = true
	}
}

// settle counts an item that was delivered or, with a reason, became a dead letter.
func (c *Counts) settle(i *item, deadReason string) {
	if deadReason == "" {
		c.successes++
	}
	c.settleOfWatch(i, deadReason != "")
	switch {
	case i.gap != nil:
		c.GapsWaiting--
		c.GapsSettled++
	case i.mark != nil:
		c.GapsWaiting--
	case deadReason != "":
		c.Waiting--
		c.Dead[deadReason]++
	default:
		c.Waiting--
		c.Delivered++
	}
	if c.unreadable > 0 && c.Waiting+c.GapsWaiting == 0 { // what could not be read counts under its watch
		for _, w := range c.watches {
			w.before, w.after, w.snapshots = 0, 0, 0
		}
	}
}

// restored corrects the counts for an entry of the log of the last run, once it is read: all of them count as deltas before.
func (c *Counts) restored(i *item) {
	c.takeOfWatch(i)
	if i.notice() {
		c.Restored--
		c.Waiting--
		c.GapsWaiting++
	}
}

// Stats are the counts of a pipeline at one moment.
type Stats struct {
	Counts
	// Bytes of what is waiting in memory, as it counts towards the bound.
	Bytes int64 `json:"bytes"`
	// OnDisk counts the deltas and gaps behind the cursors of their flows, and LogBytes what the log takes.
	OnDisk   uint64 `json:"onDisk"`
	LogBytes int64  `json:"logBytes"`
	// Oldest is when the oldest unsettled change was observed; zero if there is none.
	Oldest time.Time `json:"oldest,omitzero"`
	// AwaySince is zero while the sink is available.
	AwaySince time.Time `json:"awaySince,omitzero"`
	// LastError is the text of the last failure, also after later successes.
	LastError string `json:"lastError,omitempty"`
}

// Beat returns when the dispatcher last ran.
func (p *Pipeline) Beat() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.beat
}

// Stats returns the counts of this moment. It looks at all objects that wait.
func (p *Pipeline) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Counts: p.counts, Bytes: p.budget.memory + p.budget.buffered, OnDisk: p.log.behind, LogBytes: p.log.bytes,
		AwaySince: p.awaySince, LastError: p.lastErr,
	}
	s.Dead, s.filteredBy, s.watches = maps.Clone(s.Dead), slices.Clone(s.filteredBy), nil
	for _, f := range p.log.flows {
		if f.behind {
			s.countOldest(f.lastRead)
		}
	}
	for items := range p.scheduler.Objects() {
		s.countOldest(itemOf(items[0]).observed)
	}
	return s
}

func (s *Stats) countOldest(observed time.Time) {
	if s.Oldest.IsZero() || observed.Before(s.Oldest) {
		s.Oldest = observed
	}
}
