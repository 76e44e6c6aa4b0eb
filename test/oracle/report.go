package oracle

import (
	"errors"
	"fmt"
	"strings"
)

// Report is the result of a comparison of what was delivered. The lists hold ids, each followed by the reason where it is not plain.
type Report struct {
	// Missing changes were due and did not arrive, neither themselves nor as what stands for them.
	Missing []string
	// Unexpected records are of something that did not happen.
	Unexpected []string
	// OutOfOrder records arrived for the first time after a later change of the same object.
	OutOfOrder []string
	// Unknowable deletions did not arrive and need not have: a gap with the reason lost covers them. Their objects still exist for whoever
	// got the records.
	Unknowable []string
	// Duplicates are ids that arrived again, once per extra arrival. At least once allows them.
	Duplicates []string

	// Expected is the number of changes that were due; the rest counts distinct ids that arrived.
	Expected, Distinct, Snapshots, Inferred, Gaps int
	// Holes is the number of times the oracle itself lost history; inside, the report is a lenient one.
	Holes        int
	holesAllowed bool
}

// OK reports whether nothing is missing, unexpected or out of order, and the oracle could check that.
func (r *Report) OK() bool {
	return len(r.Missing)+len(r.Unexpected)+len(r.OutOfOrder) == 0 && (r.Holes == 0 || r.holesAllowed)
}

// Err is nil if the report is OK, and otherwise names what is wrong.
func (r *Report) Err() error {
	if r.OK() {
		return nil
	}
	return errors.New(r.String())
}

// String is a summary in one line and, below it, at most ten entries of each list.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d changes due, %d ids arrived (%d snapshot, %d inferred, %d gaps): "+
		"%d missing, %d unexpected, %d out of order, %d duplicates",
		r.Expected, r.Distinct, r.Snapshots, r.Inferred, r.Gaps,
		len(r.Missing), len(r.Unexpected), len(r.OutOfOrder), len(r.Duplicates))
	if r.Holes > 0 {
		fmt.Fprintf(&b, "; the oracle lost history %d times", r.Holes)
	}
	for _, list := range []struct {
		name string
		ids  []string
	}{
		{"missing", r.Missing},
		{"unexpected", r.Unexpected},
		{"out of order", r.OutOfOrder},
		{"unknowable", r.Unknowable},
		{"duplicate", r.Duplicates},
	} {
		const limit = 10
		for i, id := range list.ids {
			if i == limit {
				fmt.Fprintf(&b, "\n  %s: … and %d more", list.name, len(list.ids)-limit)
				break
			}
			fmt.Fprintf(&b, "\n  %s: %s", list.name, id)
		}
	}
	return b.String()
}
