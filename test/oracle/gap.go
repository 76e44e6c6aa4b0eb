package oracle

import "strconv"

// gap is a gap record that arrived.
type gap struct {
	span
	record  Record
	at      int // its place among the first arrivals
	unclean bool
}

func newGap(r Record, at int) gap {
	from, _ := strconv.ParseUint(r.From, 10, 64)
	to, _ := strconv.ParseUint(r.To, 10, 64)
	return gap{span: span{from, to}, record: r, at: at, unclean: r.Unclean}
}

// covers tells if the gap's watch sees what r tells of, or a part of it.
func (g gap) covers(r Record) bool {
	return g.record.Resource == r.Resource &&
		(g.record.Namespace == "" || r.Namespace == "" || g.record.Namespace == r.Namespace)
}

// gapsOf are the gaps that arrived so far in a watch that sees what r tells of.
func (c *comparison) gapsOf(r Record) []gap {
	var found []gap
	for _, g := range c.gaps {
		if g.covers(r) {
			found = append(found, g)
		}
	}
	return found
}

// impossibleGap is the reason why a gap record should not have arrived, or empty.
func (c *comparison) impossibleGap(r Record) string {
	switch {
	case !c.opts.AllowGaps:
		return "a gap"
	case r.Unclean && !c.opts.AllowUnclean:
		return "an unclean gap"
	}
	return ""
}
