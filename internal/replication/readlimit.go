package replication

import (
	"context"
	"time"
)

// shortTries is how many reads in a row may end at the shortest limit.
const shortTries = 3

// readLimit bounds how long a standby waits for each answer when it reads the Lease. Three reads or more fit into the half of its
// duration after which the Lease counts as not read, so that a dead connection, and a dial or two to an API server that is gone, do not
// begin the wait for the Lease anew. By default one fits behind an update that got no answer. It follows an API server that is slow.
type readLimit struct {
	least, now time.Duration
	missed     int // in a row
}

func newReadLimit(leaseDuration time.Duration) *readLimit {
	least := max(time.Second, leaseDuration/10)
	return &readLimit{least: least, now: least}
}

func (r *readLimit) read(ctx context.Context, lease *Lease) error {
	reading, cancel := context.WithTimeout(ctx, r.now)
	defer cancel()
	begun := time.Now()
	err := lease.Read(reading)
	switch took := time.Since(begun); {
	case reading.Err() == nil: // an answer, or an error that says more than a time-out
		r.now, r.missed = max(r.least, 2*took), 0
	case r.missed < shortTries-1:
		r.missed++
	default:
		r.now = min(2*r.now, time.Minute)
	}
	return err
}
