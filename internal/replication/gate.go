package replication

import (
	"context"
	"errors"
	"sync"
	"time"
)

// margin is how long before the end of the Lease deliveries are cancelled.
const margin = time.Second

// pollInterval is how often a gate checks whether it may be open: the Lease may be lost before it ends, and the clock of a machine that
// slept goes on.
const pollInterval = 50 * time.Millisecond

var errShut = errors.New("this replica may not deliver now: its Lease was not renewed in time")

// Gate lets deliveries begin while this replica certainly leads, and cancels those under way before it may not any more.
type Gate struct {
	may func() (left time.Duration)

	mu      sync.Mutex // guards what follows
	open    bool
	closing bool // for good
	ctx     context.Context
	shut    context.CancelCauseFunc // of ctx, which ends when deliveries must
	changed chan struct{}           // closed at the next change
	inside  int
	fenced  int // how often it was shut
}

// NewGate makes a gate that is shut. may returns how long deliveries may go on; it is called before each.
func NewGate(may func() (left time.Duration)) *Gate {
	return &Gate{may: may, changed: make(chan struct{})}
}

// Run opens and shuts the gate until ctx ends. report is called with each change.
func (g *Gate) Run(ctx context.Context, report func(open bool)) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			g.set(false)
			return
		}
		left := g.may()
		if g.set(left > 0) {
			report(left > 0)
		}
		if left <= 0 {
			left = pollInterval
		}
		timer.Reset(min(left, pollInterval))
	}
}

func (g *Gate) set(open bool) (changed bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open == open || open && g.closing {
		return false
	}
	g.open = open
	if open {
		g.ctx, g.shut = context.WithCancelCause(context.Background())
	} else {
		g.shut(errShut)
		g.fenced++
	}
	g.wakeAll()
	return true
}

func (g *Gate) wakeAll() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Enter waits until a delivery may begin, or ctx ends. The delivery's context ends when it must. leave must be called once; it
// reports whether the gate cut the delivery short.
func (g *Gate) Enter(ctx context.Context) (delivery context.Context, leave func() (cut bool), err error) {
	var until context.Context
	for until == nil {
		g.mu.Lock()
		changed := g.changed
		if g.open && !g.closing && g.may() > 0 { // Run may be late, as in a process that was frozen
			g.inside++
			until = g.ctx
		}
		g.mu.Unlock()
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
	detach := context.AfterFunc(until, func() { cancel(errShut) })
	return delivery, func() bool {
		detach()
		cut := errors.Is(context.Cause(delivery), errShut) || !g.MayGoOn() // Run may be late
		cancel(nil)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.inside--
		g.wakeAll()
		return cut
	}, nil
}

// MayGoOn reports whether a delivery that has begun may go on. Its context ends when it may not, but perhaps later, as in a process that
// was frozen.
func (g *Gate) MayGoOn() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open && g.may() > 0
}

// Close lets no more deliveries begin, and returns when those under way have ended, or ctx.
func (g *Gate) Close(ctx context.Context) {
	for {
		g.mu.Lock()
		g.closing = true
		inside, changed := g.inside, g.changed
		g.mu.Unlock()
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
