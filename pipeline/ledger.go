package pipeline

import (
	"maps"
	"time"
)

// ledger counts every delta once at each station, so that
//
//	received + restored = filtered + delivered + dead + waiting
//
// holds whenever the pipeline's mutex is free. Gaps are counted apart.
type ledger struct {
	received, restored, filtered, delivered, waiting uint64
	dead                                             map[string]uint64 // by reason
	gapsWaiting, gapsDelivered, gapsDead             uint64
}

func newLedger() ledger { return ledger{dead: map[string]uint64{}} }

func (l *ledger) took(i *item) {
	if i.gap != nil {
		l.gapsWaiting++
		return
	}
	l.received++
	l.waiting++
}

// settle takes note of an item that was delivered or, with a reason, written to the dead letter.
func (l *ledger) settle(i *item, deadReason string) {
	switch {
	case i.gap != nil && deadReason != "":
		l.gapsWaiting--
		l.gapsDead++
	case i.gap != nil:
		l.gapsWaiting--
		l.gapsDelivered++
	case deadReason != "":
		l.waiting--
		l.dead[deadReason]++
	default:
		l.waiting--
		l.delivered++
	}
}

// Stats is a consistent view of a pipeline.
type Stats struct {
	Received  uint64 `json:"received"`
	Restored  uint64 `json:"restored"`
	Filtered  uint64 `json:"filtered"`
	Delivered uint64 `json:"delivered"`
	// Dead is by reason.
	Dead map[string]uint64 `json:"dead"`
	// Waiting counts the deltas that are not settled.
	Waiting uint64 `json:"waiting"`
	// Gaps are counted apart from the deltas.
	GapsWaiting   uint64 `json:"gapsWaiting"`
	GapsDelivered uint64 `json:"-"`
	GapsDead      uint64 `json:"-"`
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
	// Beat is when the dispatcher last went round.
	Beat time.Time `json:"-"`
}

// Stats returns the present state.
func (p *Pipeline) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{
		Received: p.ledger.received, Restored: p.ledger.restored, Filtered: p.ledger.filtered,
		Delivered: p.ledger.delivered, Dead: maps.Clone(p.ledger.dead),
		Waiting: p.ledger.waiting, Bytes: p.budget.memory + p.budget.buffered,
		OnDisk: p.log.behind, LogBytes: p.log.bytes,
		GapsWaiting: p.ledger.gapsWaiting, GapsDelivered: p.ledger.gapsDelivered, GapsDead: p.ledger.gapsDead,
		GateOpen: !p.breaker.tripped, LastError: p.lastErr, Beat: p.beat,
	}
	if p.breaker.tripped {
		s.ClosedSince = p.breaker.since
	}
	if oldest := p.backlog.oldest; oldest != nil {
		s.Oldest = oldest.observed
	} else if p.log.behind > 0 {
		s.Oldest = p.log.lastRead
	}
	for _, o := range p.log.returning { // those that wait for their first record count with it
		if observed := o.parked[0].observed; s.Oldest.IsZero() || observed.Before(s.Oldest) {
			s.Oldest = observed
		}
	}
	return s
}

// successes counts whatever was ever delivered.
func (l *ledger) successes() uint64 { return l.delivered + l.gapsDelivered }

// foundGap corrects the count of restored deltas for an entry that turns out to be a gap.
func (l *ledger) foundGap() {
	l.restored--
	l.waiting--
	l.gapsWaiting++
}
