package pipeline

import (
	"maps"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
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
	// snapshots are those that are under way, by watch.
	snapshots map[string]snapshotCount
	// unread is the number after the last entry of the log of which the watch could not be read: it may be of any snapshot.
	unread uint64
}

// snapshotCount counts the records of snapshots of one watch, marks included.
type snapshotCount struct {
	waiting int
	former  int    // entries that the last run left of the watch, of whatever kind: read from the log, and not settled
	died    bool   // the last one that started lacks a record: it went to the dead letter, or past its mark, or was kept back
	refused bool   // since then a mark went to the dead letter because the sink has no place for marks
	started uint64 // the number of its first mark
}

func (c *Counts) take(i *item) {
	c.countSnapshot(i, 1, false)
	if i.notice() {
		c.GapsWaiting++
		return
	}
	c.Received++
	c.Waiting++
}

// countSnapshot counts an item, if it is of a snapshot or of the last run, as taken or, with -1, as settled.
func (c *Counts) countSnapshot(i *item, more int, died bool) {
	if i.watch == "" {
		c.unread = max(c.unread, i.seq+1)
	}
	if !i.ofSnapshot() && !i.restored {
		return
	}
	s := c.snapshots[i.watch]
	if i.mark != nil && i.mark.Phase == delta.Started && more > 0 {
		s.died, s.refused, s.started = false, false, i.seq
	}
	if i.ofSnapshot() {
		s.waiting += more
		s.died = s.died || died
	}
	if i.restored {
		s.former += more
	}
	c.snapshots[i.watch] = s
}

// died reports whether a record of a snapshot of a watch may be a dead letter, since the last one started.
func (c *Counts) died(watch string) bool {
	s := c.snapshots[watch]
	return s.died || c.unread > s.started
}

// spoilSnapshot makes the snapshot of a watch count as incomplete.
func (c *Counts) spoilSnapshot(watch string) {
	s := c.snapshots[watch]
	s.died = true
	c.snapshots[watch] = s
}

// settle counts an item that was delivered or, with a reason, written to the dead letter.
func (c *Counts) settle(i *item, deadReason string) {
	if deadReason == "" {
		c.successes++
	}
	c.countSnapshot(i, -1, deadReason != "")
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
	if c.unread > 0 && c.Waiting+c.GapsWaiting == 0 { // what could not be read counts under its watch
		for watch, s := range c.snapshots {
			s.waiting, s.former = 0, 0
			c.snapshots[watch] = s
		}
	}
}

// restored corrects the counts for an entry of the log of the last run, once it is read: all of them count as deltas before.
func (c *Counts) restored(i *item) {
	c.countSnapshot(i, 1, false)
	if i.notice() {
		c.Restored--
		c.Waiting--
		c.GapsWaiting++
	}
}

// Stats is a consistent view of a pipeline.
type Stats struct {
	Counts
	// Bytes of what is waiting in memory, as it counts towards the bound.
	Bytes int64 `json:"bytes"`
	// OnDisk counts the deltas and gaps behind the cursors of their flows, and LogBytes what the log takes.
	OnDisk   uint64 `json:"onDisk"`
	LogBytes int64  `json:"logBytes"`
	// Oldest is when the oldest unsettled change was observed; zero if there is none.
	Oldest time.Time `json:"oldest,omitzero"`
	// Available is false while the sink is away, since AwaySince.
	Available bool      `json:"-"`
	AwaySince time.Time `json:"awaySince,omitzero"`
	// LastError is the text of the last failure, also after later successes.
	LastError string `json:"lastError,omitempty"`
	// Beat is when the dispatcher last ran.
	Beat time.Time `json:"-"`
}

// Stats returns the present state.
func (p *Pipeline) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Counts: p.counts, Bytes: p.budget.memory + p.budget.buffered, OnDisk: p.log.behind, LogBytes: p.log.bytes,
		Available: p.awaySince.IsZero(), AwaySince: p.awaySince, LastError: p.lastErr, Beat: p.beat,
	}
	s.Dead, s.filteredBy, s.snapshots = maps.Clone(s.Dead), slices.Clone(s.filteredBy), nil
	if oldest := p.backlog.arrivals.Front(); oldest != nil {
		s.Oldest = oldest.Value.(*item).observed
	}
	for _, f := range p.log.flows {
		if f.behind {
			s.countOldest(f.lastRead)
		}
	}
	for e := p.backlog.loaded.Front(); e != nil; e = e.Next() {
		s.countOldest(e.Value.(*item).observed)
	}
	return s
}

func (s *Stats) countOldest(observed time.Time) {
	if s.Oldest.IsZero() || observed.Before(s.Oldest) {
		s.Oldest = observed
	}
}
