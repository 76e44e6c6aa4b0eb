package pipeline

import (
	"context"

	"github.com/kubeferry/kubeferry/sinks"
)

// deliver sends a batch and settles what can be settled.
func (p *Pipeline) deliver(ctx context.Context, b *batch) {
	errs, cut := p.send(ctx, b)
	v := p.decide(b, errs, ctx.Err() != nil, cut)
	p.writeDeadLetters(ctx, b, v)
	p.settle(b, v)
}

// send hands the records to the sink, except for those that could not be made, and returns an error for each. cut is set if the
// permit to deliver ended the call.
func (p *Pipeline) send(ctx context.Context, b *batch) (errs []*sinks.Error, cut bool) {
	errs = make([]*sinks.Error, len(b.items))
	records, indices := b.records, make([]int, 0, len(b.items))
	for n, i := range b.items {
		switch {
		case i.err != nil:
			errs[n] = sinks.Classify(sinks.Permanent(sinks.ReasonEncode, i.err))
		case i.final != nil: // only its letter is missing
			errs[n] = i.final
		default:
			indices = append(indices, n)
		}
	}
	if len(indices) == 0 {
		return errs, false
	}
	if len(indices) < len(records) {
		records = make([]sinks.Record, 0, len(indices))
		for _, n := range indices {
			records = append(records, b.records[n])
		}
	}
	cut, err := p.call(ctx, b, records)
	for n, err := range sinks.PerRecord(err, len(records)) {
		errs[indices[n]] = sinks.Classify(err)
	}
	return errs, cut && err != nil
}

// call makes one Deliver call once the sink has a slot for it. The wait is no part of the attempt: the time-out begins
// after it, and so does what the pipeline compares a failure with. If ctx ends first, nothing was sent.
func (p *Pipeline) call(ctx context.Context, b *batch, records []sinks.Record) (cut bool, err error) {
	call := p.slotFor(b)
	if err := p.options.Slots.Acquire(ctx, call); err != nil {
		return false, err
	}
	defer p.options.Slots.Release(call)
	ctx, leave, err := enter(ctx, p.options.Permit)
	if err != nil {
		return false, err
	}
	defer func() { cut = leave() }()

	p.mu.Lock()
	b.begun = p.now()
	if b.tries == 0 {
		b.successesBefore = p.counts.successes
	}
	p.mu.Unlock()
	b.tries++
	ctx, cancel := context.WithTimeout(ctx, p.options.Limits.Timeout)
	defer cancel()
	return false, p.options.Sink.Deliver(ctx, records)
}

// Permit decides when a sink may be called, where several processes could deliver the same.
type Permit interface {
	// Enter waits until a call may begin, and fails only if ctx ends before. The call's context ends when it must. leave must be
	// called once; it reports whether the call was cut short, which proves nothing about the sink.
	Enter(ctx context.Context) (call context.Context, leave func() (cut bool), err error)
	// MayGoOn reports whether a call that has begun may send another request. Its context ends a moment later than that may become false.
	MayGoOn() bool
}

// enter is Enter of a permit that may be nil.
func enter(ctx context.Context, p Permit) (context.Context, func() bool, error) {
	if p == nil {
		return ctx, func() bool { return false }, nil
	}
	ctx, leave, err := p.Enter(ctx)
	if err != nil {
		return nil, nil, err
	}
	return sinks.WithFence(ctx, p.MayGoOn), leave, nil
}
