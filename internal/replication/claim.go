package replication

import (
	"cmp"
	"time"
)

// Claim is which state a replica holds. The zero value is an empty one's.
type Claim struct {
	// Lineage is random, made with an empty state.
	Lineage string
	// Term and Commit are those of the last commit.
	Term, Commit uint64
}

// compare orders the states of one lineage.
func (c Claim) compare(other Claim) int {
	return cmp.Or(cmp.Compare(c.Term, other.Term), cmp.Compare(c.Commit, other.Commit))
}

// emptyWait is how long a replica without a state leaves a free Lease to others.
const emptyWait = 5 * time.Minute

// wait returns how long the holder of a claim leaves a free Lease to others, who may have a newer state.
func (c Claim) wait(lease Claim, staleWait time.Duration) time.Duration {
	switch {
	case lease.Lineage == "": // there was no leader yet
		return 0
	case c.Lineage == "":
		return emptyWait
	case c.behind(lease):
		return staleWait
	default:
		return 0
	}
}

// behind reports whether the Lease names a newer state than the claim's.
func (c Claim) behind(lease Claim) bool {
	return lease.Lineage != "" && (c.Lineage != lease.Lineage || c.compare(lease) < 0)
}
