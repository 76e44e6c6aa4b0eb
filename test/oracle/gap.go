package oracle

import (
	"fmt"
	"slices"
	"strconv"
)

// gap is a gap record that arrived.
type gap struct {
	span
	record Record
	at     int // its place among the first arrivals
}

func (c *comparison) newGap(r Record) gap {
	from, _ := strconv.ParseUint(r.From, 10, 64)
	to, _ := strconv.ParseUint(r.To, 10, 64)
	return gap{span: span{c.version(from), c.version(to)}, record: r, at: c.at[r.ID]}
}

// version is the resource version of a sequence: without the highest of the offsets in use that leaves one.
func (c *comparison) version(sequence uint64) uint64 {
	offset := uint64(0)
	for o := range c.offsets {
		if o <= sequence {
			offset = max(offset, o)
		}
	}
	return sequence - offset
}

// covers reports whether the gap's watch sees the object of r, or a part of its range.
func (g gap) covers(r Record) bool {
	return g.record.Resource == r.Resource &&
		(g.record.Namespace == "" || r.Namespace == "" || g.record.Namespace == r.Namespace)
}

// gapsOf are the gaps that arrived so far in a watch that sees the object of r.
func (c *comparison) gapsOf(r Record) []gap {
	var found []gap
	for _, g := range c.gaps {
		if g.covers(r) {
			found = append(found, g)
		}
	}
	return found
}

// impossibleGap is the reason why a gap record should not have arrived, or empty. Its range is that of the history that
// its watch did not get: from a position that it could have been at, to a version that the server had.
func (c *comparison) impossibleGap(r Record) string {
	from, err := strconv.ParseUint(r.From, 10, 64)
	to, err2 := strconv.ParseUint(r.To, 10, 64)
	switch {
	case !c.opts.AllowGaps:
		return "a gap"
	case r.lost() && !c.opts.AllowLost:
		return "a gap with the reason lost"
	case err != nil || err2 != nil || from > to:
		return fmt.Sprintf("it goes from %q to %q", r.From, r.To)
	case c.opts.newest != 0 && c.version(to) > c.opts.newest:
		return fmt.Sprintf("it goes to %d, the server is at %d", c.version(to), c.opts.newest)
	case r.lost(): // it begins at the last commit, and more was sent
		return ""
	}
	g := c.newGap(r)
	again := len(c.gapsOf(r)) > 0
	for _, before := range c.first[:g.at] {
		// Of a reading that another gap began there is no position before its end.
		if before.Type == Gap || before.Inferred || before.Snapshot && again || !g.covers(before) {
			continue
		}
		if before.Sequence > from || before.Sequence == 0 && before.order() > c.version(from) {
			return "it begins before what was sent: " + before.ID
		}
	}
	return ""
}

// misplaced is the reason why a record cannot have arrived, or empty: what lies inside of a gap that arrived before is
// not sent as it happened, and what is inferred lies inside of one. (Without a sequence it is not known when an object was deleted.)
func (c *comparison) misplaced(r Record) string {
	for _, g := range c.gapsOf(r) {
		inside := g.contains(c.version(r.order()))
		if inside && !r.Inferred && !r.Snapshot {
			return "the history around it was refused: " + g.record.ID
		}
	}
	if r.Inferred && !c.gapFor(r, func(g gap) bool { return g.contains(c.version(r.order())) || r.Type == Deleted && r.Sequence == 0 }) {
		return "inferred, and in the range of no gap"
	}
	return ""
}

// gapFor reports whether a gap that covers r fits. It may arrive later than r: a gap record holds back nothing.
func (c *comparison) gapFor(r Record, fits func(gap) bool) bool {
	return slices.ContainsFunc(c.first, func(record Record) bool {
		if record.Type != Gap || c.impossibleGap(record) != "" {
			return false
		}
		g := c.newGap(record)
		return g.covers(r) && fits(g)
	})
}
