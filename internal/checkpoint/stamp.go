package checkpoint

import (
	"cmp"
	"slices"
)

// Stamp is which commit of which history a file holds, where replicas share a state.
type Stamp struct {
	// Lineage is random, made with an empty state.
	Lineage string `json:"lineage"`
	// Term is the number of the leader that wrote the commit; each has a higher one than those before.
	Term uint64 `json:"term"`
	// Commit counts the commits of the lineage.
	Commit uint64 `json:"commit"`
	// Began has an item for each of the latest terms, the last one included.
	Began []TermStart `json:"began,omitempty"`
	// RedactionKey is the key that the first leader made, where none is configured.
	RedactionKey []byte `json:"redactionKey,omitempty"`
}

// TermStart is the commit that a leader began with.
type TermStart struct {
	Term  uint64 `json:"term"`
	After uint64 `json:"after"`
}

// maxTerms bounds Stamp.Began.
const maxTerms = 16

// Begin returns the stamp that a new leader begins with.
func (s Stamp) Begin(term uint64) Stamp {
	s.Term = term
	s.Began = append(slices.Clone(s.Began), TermStart{term, s.Commit})
	s.Began = s.Began[max(0, len(s.Began)-maxTerms):]
	return s
}

// next is the stamp of the next commit.
func (s *Stamp) next() *Stamp {
	next := *s
	next.Commit++
	return &next
}

// Compare orders the commits of one lineage.
func (s Stamp) Compare(other Stamp) int {
	return cmp.Or(cmp.Compare(s.Term, other.Term), cmp.Compare(s.Commit, other.Commit))
}

// Includes reports whether all that the other commit wrote is certainly part of this history.
func (s Stamp) Includes(other Stamp) bool {
	if s.Lineage != other.Lineage || s.Compare(other) < 0 {
		return false
	}
	if s.Term == other.Term {
		return true
	}
	for n := 1; n < len(s.Began); n++ {
		// A term that is not among them was led from a copy of this history, and none of its commits came into it.
		if s.Began[n-1].Term == other.Term {
			return other.Commit <= s.Began[n].After
		}
	}
	return false
}

// Lead makes each commit carry a stamp, the first one the next after begin. tap is called with each commit, in their order,
// after it is on disk. Of one that failed it gets nothing: the next one has the same number, and all that the failed one had.
func (s *Store) Lead(begin Stamp, tap func(stamp *Stamp, changes []Changes)) {
	s.info.Replica, s.tap = &begin, tap
}

// LeadAlone begins a term without replicas, where some shared the state before: then a copy from before does not include it. A term
// is at least the time in microseconds, as those of a Lease are.
func (s *Store) LeadAlone(now uint64) {
	if before := s.info.Replica; before != nil {
		alone := before.Begin(max(before.Term+1, now))
		s.info.Replica = &alone
	}
}

// Doubt makes the store one whose last run did not end with a last commit: more may have been sent than it has.
func (s *Store) Doubt() { s.info.Clean = false }
