package sinks

import (
	"context"
	"fmt"
)

// Split sends a batch in requests that the peer takes or refuses as a whole. When the peer refuses a request because of some of its
// records, Split sends it again in halves until those records are alone. It holds back the later records of the same key. One goroutine uses it.
type Split struct {
	Batch []Record
	// Errs has the result of each record of Batch.
	Errs []error
	// Fit returns how many of the first records in rest go into one request, at least 1.
	Fit func(rest []*Record) int
	// Request sends records. halve reports that fewer in one request may be taken. Unless the error is permanent, it would
	// meet any record.
	Request func(ctx context.Context, records []*Record) (halve bool, err error)

	failed map[string]error // by key
}

// Send sends the records at the indices in order. A failure that is not permanent ends it: the rest gets that error.
func (s *Split) Send(ctx context.Context, indices []int) {
	for len(indices) > 0 {
		n := s.Fit(s.records(indices))
		if err := s.send(ctx, indices[:n]); err != nil {
			s.fail(indices[n:], err)
			return
		}
		indices = indices[n:]
	}
}

// send sends one request, in halves if need be. It returns an error that would meet any record.
func (s *Split) send(ctx context.Context, indices []int) error {
	indices = s.withoutHeld(indices)
	if len(indices) == 0 {
		return nil
	}
	halve, err := false, Fence(ctx)
	if err == nil {
		halve, err = s.Request(ctx, s.records(indices))
	}
	switch {
	case err == nil:
		return nil
	case halve && len(indices) > 1:
		half := len(indices) / 2
		if err := s.send(ctx, indices[:half]); err != nil {
			s.fail(indices[half:], err)
			return err
		}
		return s.send(ctx, indices[half:])
	}
	s.fail(indices, err)
	if Classify(err).Permanent {
		return nil
	}
	return err
}

func (s *Split) records(indices []int) []*Record {
	records := make([]*Record, len(indices))
	for n, i := range indices {
		records[n] = &s.Batch[i]
	}
	return records
}

// withoutHeld leaves out the records that must wait for an earlier one of their key, and gives them their error.
func (s *Split) withoutHeld(indices []int) []int {
	if len(s.failed) == 0 {
		return indices
	}
	var free []int
	for _, i := range indices {
		earlier, held := s.failed[s.Batch[i].Key]
		if !held {
			free = append(free, i)
			continue
		}
		s.Errs[i] = Transient(Classify(earlier).Reason,
			fmt.Errorf("held back, because an earlier record of the same object failed: %w", earlier))
	}
	return free
}

func (s *Split) fail(indices []int, err error) {
	if s.failed == nil {
		s.failed = map[string]error{}
	}
	for _, i := range indices {
		s.Errs[i] = err
		s.failed[s.Batch[i].Key] = err
	}
}
