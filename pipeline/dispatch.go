package pipeline

import (
	"context"
	"sync"
	"time"
)

// Run delivers until ctx ends, and returns when no delivery is under way.
func (p *Pipeline) Run(ctx context.Context) {
	var workers sync.WaitGroup
	for range p.options.Limits.Concurrency {
		workers.Go(func() {
			for b := range p.batches {
				p.deliver(ctx, b)
				p.signal()
			}
		})
	}
	if p.options.Log != nil {
		workers.Go(func() { p.load(ctx) })
	}
	for b := p.next(ctx); b != nil; b = p.next(ctx) {
		p.batches <- b // a worker is free, or will be at once
	}
	close(p.batches)
	workers.Wait()
}

// beatInterval bounds how long the dispatcher sleeps, so that /healthz can see that it runs.
const beatInterval = 2 * time.Second

// next waits for a batch that may be sent; nil when ctx ends.
func (p *Pipeline) next(ctx context.Context) *batch {
	timer := time.NewTimer(beatInterval)
	defer timer.Stop()
	for ctx.Err() == nil {
		b, wait := p.pick() //nolint:contextcheck // as in deliver.go
		if b != nil {
			p.linger(ctx, b)
			if p.limiter != nil {
				p.limiter.ReserveN(p.now(), len(b.items))
			}
			return b
		}
		timer.Reset(min(wait, beatInterval))
		select {
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// pick returns what may be sent now, or how long to wait at most if nothing else happens.
func (p *Pipeline) pick() (*batch, time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.now()
	p.beat = now
	p.noteAvailable(now)
	if p.budget.encoded > p.options.MaxBytes/2 { // a batch that ends wakes the dispatcher
		return nil, beatInterval
	}
	b := p.newBatch()
	if p.limiter != nil {
		tokens := p.limiter.TokensAt(now)
		if b.most = int(tokens); b.most == 0 {
			p.recycle(b)
			return nil, time.Duration((1 - tokens) / p.options.Rate.PerSecond * float64(time.Second))
		}
	}
	p.queued = 0
	picked, wake := p.scheduler.Next(now, b.fits)
	if b.Batch = picked; picked != nil {
		return b, 0
	}
	p.recycle(b)
	if wake.IsZero() {
		return nil, beatInterval
	}
	return nil, max(0, wake.Sub(now))
}

// enqueue hands an item to the scheduler. p.mu is held.
func (p *Pipeline) enqueue(i *item) {
	if p.scheduler.Add(&i.Item, p.now()) {
		p.noteFailing(i)
	}
	p.queued++
	if p.queued >= p.wakeAt {
		p.signal()
	}
}

const (
	// wakeThreshold is how many records wake a dispatcher that lingers: waking up costs more than encoding one.
	wakeThreshold = 16
	// lingerPollInterval is how often a waiting batch looks for more.
	lingerPollInterval = 5 * time.Millisecond
)

// linger fills a batch that has room until it is full or Limits.Linger is over.
func (p *Pipeline) linger(ctx context.Context, b *batch) {
	limits := p.options.Limits
	full := func(wakeAt int) bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.queued, p.wakeAt = 0, wakeAt
		return b.bytes >= limits.MaxBytes || p.scheduler.Fill(b.Batch, p.now(), b.fits)
	}
	wakeAt := func() int { return min(wakeThreshold, limits.MaxRecords-len(b.records)) }
	if limits.Linger <= 0 || full(wakeAt()) {
		full(0)
		return
	}
	end := time.Now().Add(limits.Linger)
	timer := time.NewTimer(min(lingerPollInterval, limits.Linger))
	defer timer.Stop()
	defer p.signal() // next may have missed one meanwhile: it was taken here, or not given for wakeAt
	for over := false; !over; {
		select {
		case <-p.wake:
		case <-timer.C:
			left := time.Until(end)
			over = left <= 0
			timer.Reset(min(lingerPollInterval, max(left, 0)))
		case <-ctx.Done():
			over = true
		}
		over = full(wakeAt()) || over
	}
	p.mu.Lock()
	p.wakeAt = 0
	p.mu.Unlock()
}
