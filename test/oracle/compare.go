package oracle

import (
	"context"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Snapshot is what is expected of the state that the oracle found at its start.
type Snapshot int

// The values of [Snapshot].
const (
	SnapshotRequired  Snapshot = iota // each object arrives
	SnapshotOptional                  // it may arrive
	SnapshotForbidden                 // no record is marked as snapshot
)

// CompareOptions are what to expect. The zero value suits a pipeline without filters that was started, with a
// snapshot, after the oracle and before the first write, and that never lost history.
type CompareOptions struct {
	Snapshot Snapshot
	// Since makes changes up to this resource version optional, for a pipeline that started later than the oracle.
	Since string
	// AllowGaps accepts gap records and inferred ones. Between `from` and `to` of a gap only the net difference is due.
	AllowGaps bool
	// AllowLost accepts gaps with the reason lost: of a kubeferry that was killed. What is due then is less: a deletion that was sent may be
	// sent again, and one of an object that lived in the gap only cannot be known.
	AllowLost bool
	// AllowHoles accepts that the oracle itself lost history, so that its report is a lenient one there.
	AllowHoles bool

	newest uint64 // that no gap goes beyond; 0 if it is not known
	// AllowEarlier accepts records of changes before the oracle's start.
	AllowEarlier bool
}

// Compare judges records in the order of their arrival. Order per object is the order of each id's first arrival.
func (o *Oracle) Compare(got []Record, opts CompareOptions) *Report {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := newComparison(o, got, opts)
	for _, r := range c.first {
		c.judge(r)
	}
	for _, w := range o.watches {
		c.require(w)
		c.report.Holes += len(w.history.holes)
	}
	c.report.holesAllowed = opts.AllowHoles
	return c.report
}

// WaitDelivered compares what got returns until nothing is missing, and returns the last report. What arrived out of
// order cannot heal, nor can a hole, so it ends the wait at once. The error is that of ctx or of the oracle.
func (o *Oracle) WaitDelivered(ctx context.Context, got func() []Record, opts CompareOptions) (*Report, error) {
	var report *Report
	err := o.poll(ctx, func() error {
		records := got()
		if opts.AllowGaps {
			newest, err := o.watches[0].newest(ctx)
			if err != nil && ctx.Err() != nil && report != nil {
				return report.Err() // which has more detail
			}
			if err != nil {
				return err
			}
			opts.newest = newest
		}
		report = o.Compare(records, opts)
		if len(report.OutOfOrder) > 0 || report.Holes > 0 && !opts.AllowHoles {
			return nil
		}
		return report.Err()
	})
	return report, err
}

// version identifies a state of an object.
type version struct{ uid, version string }

// comparison is the work of one call of Compare.
type comparison struct {
	oracle *Oracle
	opts   CompareOptions
	since  uint64
	report *Report

	first   []Record             // the first arrival of each id
	at      map[string]int       // where it is in first, by id
	states  map[version][]Record // ADDED and MODIFIED
	byUID   map[string][]Record
	gaps    []gap              // those judged so far, and found to be possible
	highest map[objectKey]rank // of the arrivals so far
	offsets map[uint64]bool    // in the sequences

	changeIDs map[string]bool   // what the oracle saw happen
	known     map[version]bool  // the states it saw
	deleted   map[string]change // the deletions it saw, by uid

	ended map[string]bool // the uids whose DELETED has arrived so far
}

type objectKey struct {
	resource        schema.GroupVersionResource
	namespace, name string
}

// rank orders the changes of an object; a DELETED comes after what has the same version.
type rank struct {
	version uint64
	deleted bool
}

func (r rank) before(s rank) bool {
	return r.version < s.version || r.version == s.version && !r.deleted && s.deleted
}

func newComparison(o *Oracle, got []Record, opts CompareOptions) *comparison {
	c := &comparison{
		oracle: o, opts: opts, report: &Report{},
		at: map[string]int{}, states: map[version][]Record{}, byUID: map[string][]Record{},
		highest: map[objectKey]rank{}, offsets: map[uint64]bool{},
		changeIDs: map[string]bool{}, known: map[version]bool{}, deleted: map[string]change{}, ended: map[string]bool{},
	}
	c.since, _ = strconv.ParseUint(opts.Since, 10, 64)
	for _, w := range o.watches {
		for _, s := range w.history.snapshot {
			c.known[version{s.uid, s.version}] = true
		}
		for _, ch := range w.history.changes {
			if ch.typ == Deleted {
				c.deleted[ch.uid] = ch
			} else {
				c.known[version{ch.uid, ch.version}] = true
			}
			if !ch.net {
				c.changeIDs[id(o.cluster, ch.uid, ch.version, ch.typ)] = true
			}
		}
	}
	for _, r := range got {
		if _, again := c.at[r.ID]; again {
			c.report.Duplicates = append(c.report.Duplicates, r.ID)
			continue
		}
		c.at[r.ID] = len(c.first)
		c.first = append(c.first, r)
		if r.Type == Gap {
			continue
		}
		if v, err := strconv.ParseUint(r.ResourceVersion, 10, 64); err == nil && r.Sequence >= v && !(r.Inferred && r.Type == Deleted) {
			c.offsets[r.Sequence-v] = true
		}
		c.byUID[r.UID] = append(c.byUID[r.UID], r)
		if r.Type != Deleted {
			v := version{r.UID, r.ResourceVersion}
			c.states[v] = append(c.states[v], r)
		}
	}
	c.report.Distinct = len(c.first)
	return c
}
