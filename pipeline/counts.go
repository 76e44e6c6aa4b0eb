package pipeline

import (
	"maps"
	"time"
)

// Counts has every delta once at each station, so that
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
	// Gaps are counted apart from the deltas.
	GapsWaiting uint64 `json:"gapsWaiting"`
	GapsSettled uint64 `json:"-"`
	// successes counts all that was acknowledged.
	successes uint64
}

func (c *Counts) take(i *item) {
	if i.gap != nil {
		c.GapsWaiting++
		return
	}
	c.Received++
	c.Waiting++
}

// settle counts an item that was delivered or, with a reason, written to the dead letter.
func (c *Counts) settle(i *item, deadReason string) {
	if deadReason == "" {
		c.successes++
	}
	switch {
	case i.gap != nil:
		c.GapsWaiting--
		c.GapsSettled++
	case deadReason != "":
		c.Waiting--
		c.Dead[deadReason]++
	default:
		c.Waiting--
		c.Delivered++
	}
}

// restoredGap corrects the count of restored deltas for an entry of the log that turns out to be a gap.
func (c *Counts) restoredGap() {
	c.Restored--
	c.Waiting--
	c.GapsWaiting++
}

// Stats is a consistent view of a pipeline.
type Stats struct {
	Counts
	// Bytes of what is waiting in memory, as it counts towards the bound.
	Bytes int64 `json:"bytes"`
	// OnDisk counts the deltas and gaps that are in the log only, and LogBytes what the log takes.
	OnDisk   uint64 `json:"onDisk"`
	LogBytes int64  `json:"logBytes"`
	// Oldest is when the oldest unsettled change was observed; zero if there is none.
	Oldest time.Time `json:"oldest,omitzero"`
	// GateOpen is false while the sink as a whole is thought to fail, since ClosedSince.
	GateOpen    bool      `json:"-"`
	ClosedSince time.Time `json:"closedSince,omitzero"`
	// LastError is the text of the last failure; it may be over.
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
		GateOpen: !p.breaker.tripped, LastError: p.lastErr, Beat: p.beat,
	}
	s.Dead = maps.Clone(s.Dead)
	if p.breaker.tripped {
		s.ClosedSince = p.breaker.since
	}
	if oldest := p.backlog.arrivals.Front(); oldest != nil {
		s.Oldest = oldest.Value.(*item).observed
	} else if p.log.behind > 0 {
		s.Oldest = p.log.lastRead
	}
	for _, o := range p.log.returning {
		s.countParked(o)
	}
	for o := range p.backlog.failing {
		s.countParked(o)
	}
	return s
}

// countParked counts an object whose first record is in the log only towards the oldest.
func (s *Stats) countParked(o *objectQueue) {
	if len(o.items) > 0 || len(o.parked) == 0 {
		return
	}
	if observed := o.parked[0].observed; s.Oldest.IsZero() || observed.Before(s.Oldest) {
		s.Oldest = observed
	}
}
