package replication

import (
	"context"
	"errors"
	"sync"
	"time"
)

// margin is how long before the end of the Lease deliveries are cancelled.
const margin = time.Second

// pollInterval is how often a permit checks whether it is granted: the Lease may be lost before it ends, and the clock of a machine that
// slept goes on.
const pollInterval = 50 * time.Millisecond

var errWithdrawn = errors.New("this replica may not deliver now: its Lease was not renewed in time")

// Permit lets deliveries begin while this replica certainly leads, and cancels those under way before it may not any more.
type Permit struct {
	may func() (left time.Duration)

	mu       sync.Mutex // guards what follows
	granted  bool
	closing  bool // for good
	ctx      context.Context
	withdraw context.CancelCauseFunc // of ctx, which ends when deliveries must
	changed  chan struct{}           // closed at the next change
	inside   int
}

// NewPermit makes a permit that is not granted. may returns how long deliveries may go on; it is called before each.
func NewPermit(may func() (left time.Duration)) *Permit {
	return &Permit{may: may, changed: make(chan struct{})}
}

// Run grants and withdraws the permit until ctx ends. report is called with each change.
func (p *Permit) Run(ctx context.Context, report func(granted bool)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			p.set(false)
			return
		}
		left := p.may()
		if p.set(left > 0) {
			report(left > 0)
		}
		if left <= 0 {
			left = pollInterval
		}
		timer.Reset(min(left, pollInterval))
	}
}

func (p *Permit) set(granted bool) (changed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.granted == granted || granted && p.closing {
		return false
	}
	p.granted = granted
	if granted {
		p.ctx, p.withdraw = context.WithCancelCause(context.Background())
	} else {
		p.withdraw(errWithdrawn)
	}
	p.wakeAll()
	return true
}

func (p *Permit) wakeAll() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Enter waits until a delivery may begin, or ctx ends. The returned context ends when the delivery must stop. leave must be called once; it
// reports whether the permit cut the delivery short.
func (p *Permit) Enter(ctx context.Context) (delivery context.Context, leave func() (cut bool), err error) {
	var until context.Context
	for until == nil {
		p.mu.Lock()
		changed := p.changed
		if p.granted && !p.closing && p.may() > 0 { // Run may be late, as in a process that was frozen
			p.inside++
			until = p.ctx
		}
		p.mu.Unlock()
		if until != nil {
			break
		}
		select {
		case <-changed:
		case <-time.After(pollInterval):
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
	delivery, cancel := context.WithCancelCause(ctx)
	detach := context.AfterFunc(until, func() { cancel(errWithdrawn) })
	return delivery, func() bool {
		detach()
		cut := errors.Is(context.Cause(delivery), errWithdrawn) || !p.MayGoOn() // Run may be late
		cancel(nil)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.inside--
		p.wakeAll()
		return cut
	}, nil
}

// MayGoOn reports whether a delivery that has begun may go on. Its context ends when it may not, but perhaps later, as in a process that
// was frozen.
func (p *Permit) MayGoOn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.granted && p.may() > 0
}

// Close lets no more deliveries begin, and returns when those under way have ended, or ctx.
func (p *Permit) Close(ctx context.Context) {
	for {
		p.mu.Lock()
		p.closing = true
		inside, changed := p.inside, p.changed
		p.mu.Unlock()
		if inside == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
