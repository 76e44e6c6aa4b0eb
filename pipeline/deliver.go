package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// deliver sends a batch and settles what can be settled.
func (p *Pipeline) deliver(ctx context.Context, b *batch) {
	errs, cut := p.send(ctx, b)
	p.judge(b, errs, cut || ctx.Err() != nil)
	p.writeDeadLetters(ctx, b, errs)
	p.settle(b, errs)
}

// send hands to the sink what is to be sent, and returns the error of each record, nil if it has none. cut is set if the errors prove nothing
// about the sink: the permit to deliver ended the call, the log could not be read, or a record waits for the letter of one that is damaged
// there.
func (p *Pipeline) send(ctx context.Context, b *batch) (errs []*sinks.Error, cut bool) {
	errs = make([]*sinks.Error, len(b.items))
	if b.unread {
		if err := p.readUnloaded(b); err != nil { //nolint:contextcheck // of an expression, whose cost bounds it
			p.logger.Error("cannot read the log; its records wait", "err", err)
			p.pauseReading(ctx)
			for n := range errs {
				errs[n] = sinks.Classify(sinks.Transient(sinks.ReasonOther, err))
			}
			return errs, true
		}
	}
	records, indices := b.records, make([]int, 0, len(b.items))
	held := false
	for n, i := range b.items {
		switch {
		case n > 0 && errs[n-1] != nil && b.items[n-1].Ref == i.Ref && !i.needsLetter(): // it would be sent before the letter is written
			errs[n], held = sinks.Classify(sinks.Transient(sinks.ReasonOther, errBehindLetter)), true
		case i.err != nil:
			errs[n] = sinks.Classify(sinks.Permanent(sinks.ReasonEncode, i.err))
		case i.noBody: // nothing is to be sent
		case i.final != nil: // only its letter is missing
			errs[n] = i.final
		default:
			indices = append(indices, n)
		}
	}
	if len(indices) == 0 {
		return errs, held
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
	return errs, held || cut && err != nil
}

var errBehindLetter = errors.New("a record of the object before it becomes a dead letter")

// readUnloaded reads the deltas of a batch that left memory, and makes their records.
func (p *Pipeline) readUnloaded(b *batch) error {
	for n, i := range b.items {
		if i.delta != nil || i.notice() {
			continue
		}
		entries, _, err := p.options.Log.ReadFlow(i.flow.name, i.seq, 1)
		if err != nil {
			return err
		}
		if len(entries) == 0 || entries[0].Seq != i.seq || entries[0].Delta == nil {
			return fmt.Errorf("entry %d is not in the log", i.seq)
		}
		record, arena, _ := p.encoder.Encode(b.arena, &delta.Entry{Delta: entries[0].Delta})
		p.mu.Lock()
		i.delta = entries[0].Delta
		if entries[0].Unsendable != "" { // it is damaged on disk
			i.err = errors.New(entries[0].Unsendable)
		}
		p.budget.encoded += int64(len(arena) - len(b.arena))
		b.records[n], b.arena = record, arena
		p.mu.Unlock()
	}
	return nil
}

// call makes one Deliver call. If ctx ends first, nothing was sent.
func (p *Pipeline) call(ctx context.Context, b *batch, records []sinks.Record) (cut bool, err error) {
	ctx, leave, err := enter(ctx, p.options.Permit)
	if err != nil {
		return false, err
	}
	defer func() { cut = leave() }()
	begun := p.now()
	defer func() { b.took = p.now().Sub(begun) }()
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
