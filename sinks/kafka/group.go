package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

// delivery is one Deliver call.
type delivery struct {
	sink  *Sink
	batch []sinks.Record
	errs  []error // each belongs to the group of its record
}

// group are the records of a delivery that go to one partition. One goroutine owns it.
type group struct {
	*delivery
	topic     string
	partition int
	records   []int            // indices into batch, in order
	failed    map[string]error // by Record.Key: the later ones are held back
}

// send stores the records in order, in as few requests as their sizes allow. An error of a record is that record's;
// any other ends the group.
func (g *group) send(ctx context.Context, records []int) {
	for len(records) > 0 {
		n := g.fit(records)
		if err := g.store(ctx, records[:n]); err != nil {
			g.fail(records[n:], err)
			return
		}
		records = records[n:]
	}
}

// fit returns how many of the records go into the next request: as many as maxBytes allows, but at least one.
func (g *group) fit(records []int) int {
	total := batchOverhead
	for n, i := range records {
		r := &g.batch[i]
		size := g.sink.sizeOf(r).wire() + g.sink.tombstoneSize(r)
		total += size
		switch {
		case size > maxRecord && n == 0:
			return 1
		case n > 0 && (size > maxRecord || total > g.sink.maxBytes):
			return n
		}
	}
	return len(records)
}

// store sends one request, in halves if a broker refuses it for the sake of one of its records. It returns an error
// that ends the group.
func (g *group) store(ctx context.Context, records []int) error {
	records = g.withoutHeld(records)
	if len(records) == 0 {
		return nil
	}
	err := g.produce(ctx, records)
	switch {
	case err == nil:
		return nil
	case !ofTheRecord(err):
		g.fail(records, err)
		return err
	case len(records) == 1:
		g.refuse(records[0], err)
		return nil
	}
	half := len(records) / 2
	if err := g.store(ctx, records[:half]); err != nil {
		g.fail(records[half:], err)
		return err
	}
	return g.store(ctx, records[half:])
}

// withoutHeld leaves out the records that must wait for an earlier one of their object.
func (g *group) withoutHeld(records []int) []int {
	if len(g.failed) == 0 {
		return records
	}
	var free []int
	for _, i := range records {
		if earlier, held := g.failed[g.batch[i].Key]; held {
			g.errs[i] = sinks.Transient(sinks.Classify(earlier).Reason,
				fmt.Errorf("held back, an earlier record of the same object failed: %w", earlier))
			continue
		}
		free = append(free, i)
	}
	return free
}

func (g *group) fail(records []int, err error) {
	for _, i := range records {
		g.errs[i] = err
	}
}

// refuse gives record i up for good.
func (g *group) refuse(i int, err error) {
	size := g.sink.sizeOf(&g.batch[i])
	if reason := reasonOf(err); reason == sinks.ReasonTooLarge {
		err = sinks.Permanent(reason, fmt.Errorf("topic %q: a record of %d bytes (key %d, value %d, headers %d) is larger than its brokers take: %w",
			g.topic, size.total(), size.key, size.value, size.headers, err))
	} else {
		err = sinks.Permanent(reason, fmt.Errorf("topic %q: %w", g.topic, err))
	}
	g.errs[i] = err
	if g.failed == nil {
		g.failed = map[string]error{}
	}
	g.failed[g.batch[i].Key] = err
}

// produce sends one request. What it returns is either [ofTheRecord] or classified as transient.
func (g *group) produce(ctx context.Context, records []int) error {
	s := g.sink
	select {
	case s.inFlight <- struct{}{}:
		defer func() { <-s.inFlight }()
	case <-ctx.Done():
		return g.wrap(ctx.Err())
	}

	if size := s.sizeOf(&g.batch[records[0]]).wire(); len(records) == 1 && size > maxRequest {
		return kafka.MessageSizeTooLarge
	}
	refs := make([]*sinks.Record, len(records))
	for n, i := range records {
		refs[n] = &g.batch[i]
	}
	reader := newReader(s.encoding, refs)
	defer reader.stop()
	response, err := s.client.Produce(ctx, &kafka.ProduceRequest{
		Topic: g.topic, Partition: g.partition, RequiredAcks: s.acks, Compression: s.compression, Records: reader,
	})
	if err == nil && response != nil { // with requiredAcks none there is no answer
		err = response.Error
	}
	if err == nil || ofTheRecord(err) {
		return err
	}
	if errors.Is(err, protocol.ErrNoTopic) || errors.Is(err, protocol.ErrNoPartition) {
		// It was there a moment ago: the pool has been replaced meanwhile, and the new one knows nothing. Why it
		// does not is what the user wants to know.
		if _, why := s.metadata(ctx, []string{g.topic}); why != nil {
			err = why
		}
	}
	s.refreshFor(err)
	return g.wrap(err)
}

func (g *group) wrap(err error) error {
	return transient(fmt.Errorf("send to topic %q, partition %d: %w", g.topic, g.partition, err))
}
