package oracle

import (
	"slices"
	"strconv"
)

// judge decides if a record that arrived for the first time is of something that happened, and in its turn.
func (c *comparison) judge(r Record) {
	switch {
	case r.Type == Gap:
		c.report.Gaps++
	case r.Snapshot:
		c.report.Snapshots++
	case r.Inferred:
		c.report.Inferred++
	}
	if reason := c.unexpected(r); reason != "" {
		c.report.Unexpected = append(c.report.Unexpected, r.ID+": "+reason)
		return
	}
	if r.Type == Gap {
		c.gaps = append(c.gaps, c.newGap(r))
		return
	}
	object := objectKey{r.Resource, r.Namespace, r.Name}
	now := rank{r.order(), r.Type == Deleted}
	again := r.Type == Deleted && c.ended[r.UID]
	c.ended[r.UID] = c.ended[r.UID] || r.Type == Deleted
	switch {
	case !now.before(c.highest[object]):
		c.highest[object] = now
	case !again: // else whoever goes by the sequence has what came after
		c.report.OutOfOrder = append(c.report.OutOfOrder, r.ID)
	}
}

// order is what a consumer sorts the records of an object by.
func (r Record) order() uint64 {
	if r.Sequence != 0 {
		return r.Sequence
	}
	v, _ := strconv.ParseUint(r.ResourceVersion, 10, 64)
	return v
}

// unexpected is the reason why r should not have arrived, or empty.
func (c *comparison) unexpected(r Record) string {
	w := c.oracle.watcherOf(r)
	if w == nil {
		return "its resource or namespace is not watched"
	}
	if r.Type == Gap {
		return c.impossibleGap(r)
	}
	if want := id(c.oracle.cluster, r.UID, r.ResourceVersion, r.Type); r.ID != want {
		return "its id should be " + want
	}
	v, err := strconv.ParseUint(r.ResourceVersion, 10, 64)
	if err != nil {
		return "its resource version is no number"
	}
	known := c.known[version{r.UID, r.ResourceVersion}]
	switch {
	case r.Snapshot && c.opts.Snapshot == SnapshotForbidden:
		return "a snapshot"
	case r.Snapshot && r.Type != Added:
		return "a snapshot of type " + r.Type
	case r.Inferred && !c.opts.AllowGaps:
		return "inferred"
	}
	if reason := c.misplaced(r); reason != "" {
		return reason
	}
	switch {
	case r.Inferred && r.Type == Deleted:
		if seen, ok := c.deleted[r.UID]; ok {
			return c.outOfPlace(r, seen)
		}
	case (r.Snapshot || r.Inferred) && known, c.changeIDs[r.ID]:
		return ""
	}
	if v <= w.history.from && c.opts.AllowEarlier {
		return ""
	}
	for _, hole := range w.history.holes {
		if hole.contains(v) {
			return "" // the oracle has no basis for it
		}
	}
	return "no watch saw it happen"
}

// outOfPlace is the reason why an inferred DELETED is not of the deletion that was seen, or empty.
func (c *comparison) outOfPlace(r Record, seen change) string {
	switch {
	case r.Sequence != 0 && !seen.net && c.version(r.Sequence) < seen.rank:
		return "its sequence is before the deletion at " + seen.version
	case c.ended[r.UID] && !c.gapFor(r, func(g gap) bool { return g.record.lost() }):
		return "the deletion was sent before"
	}
	return ""
}

// watcherOf is the watch that sees the object of r, or a part of its range: a gap without a namespace is about all of them.
func (o *Oracle) watcherOf(r Record) *watcher {
	for _, w := range o.watches {
		everywhere := w.namespace == "" || r.Type == Gap && r.Namespace == ""
		if w.resource == r.Resource && (everywhere || w.namespace == r.Namespace) {
			return w
		}
	}
	return nil
}

// require looks for everything that the oracle recorded on w among what was delivered.
func (c *comparison) require(w *watcher) {
	lost := c.gapsOf(Record{Resource: w.resource, Namespace: w.namespace})
	byUID := map[string][]change{}
	for _, ch := range w.history.changes {
		byUID[ch.uid] = append(byUID[ch.uid], ch)
	}
	for _, s := range w.history.snapshot {
		if c.opts.Snapshot == SnapshotRequired && !c.goneBefore(byUID[s.uid]) {
			c.report.Expected++
			if len(c.states[version{s.uid, s.version}]) == 0 && !c.coveredBySnapshot(s) {
				c.missing(change{state: s, typ: Added}, "snapshot")
			}
		}
	}
	seen := map[string]int{}
	for _, ch := range w.history.changes {
		later := byUID[ch.uid][seen[ch.uid]+1:]
		seen[ch.uid]++
		if ch.rank <= c.since {
			continue
		}
		c.report.Expected++
		switch {
		case c.delivered(ch), c.excused(ch, later, lost):
		case c.unknowable(byUID[ch.uid][0], ch, lost):
			c.report.Unknowable = append(c.report.Unknowable, id(c.oracle.cluster, ch.uid, ch.version, ch.typ))
		default:
			c.missing(ch, "")
		}
	}
}

// goneBefore reports whether an object was deleted before the pipeline began.
func (c *comparison) goneBefore(changes []change) bool {
	for _, ch := range changes {
		if ch.typ == Deleted && ch.rank <= c.since {
			return true
		}
	}
	return false
}

// delivered reports whether a change arrived, itself or as a snapshot or inferred record of the same state.
func (c *comparison) delivered(ch change) bool {
	if _, ok := c.at[id(c.oracle.cluster, ch.uid, ch.version, ch.typ)]; ok {
		return true
	}
	if ch.typ == Deleted {
		for _, r := range c.byUID[ch.uid] {
			if r.Type == Deleted && (r.Inferred || ch.net) {
				return true
			}
		}
		return false
	}
	for _, r := range c.states[version{ch.uid, ch.version}] {
		if r.Snapshot || r.Inferred || ch.net {
			return true
		}
	}
	return c.coveredBySnapshot(ch.state)
}

// coveredBySnapshot reports whether the first that arrived of an object is a snapshot of a later state: the pipeline began
// after s. A snapshot that comes later excuses nothing.
func (c *comparison) coveredBySnapshot(s state) bool {
	records := c.byUID[s.uid]
	if len(records) == 0 || !records[0].Snapshot {
		return false
	}
	v, err := strconv.ParseUint(records[0].ResourceVersion, 10, 64)
	return err == nil && v >= s.rank
}

// excused reports whether a change need not have arrived, because a gap that was reported contains it and a later change of
// the object, or all of the object's life.
func (c *comparison) excused(ch change, later []change, lost []gap) bool {
	for _, gap := range lost {
		if !gap.contains(ch.rank) {
			continue
		}
		if ch.typ == Deleted {
			return len(c.byUID[ch.uid]) == 0
		}
		if len(later) > 0 && gap.contains(later[0].rank) {
			return true
		}
	}
	return false
}

// unknowable reports whether a deletion lies in the range of a gap with the reason lost, together with all of the object's life that the
// kubeferry had sent before the gap: it was killed before it noted that the object exists.
func (c *comparison) unknowable(born, ch change, lost []gap) bool {
	if ch.typ != Deleted || born.typ != Added {
		return false
	}
	return slices.ContainsFunc(lost, func(g gap) bool {
		return g.record.lost() && g.contains(born.rank) && g.contains(ch.rank) &&
			!slices.ContainsFunc(c.byUID[ch.uid], func(r Record) bool { return c.at[r.ID] > g.at })
	})
}

func (c *comparison) missing(ch change, note string) {
	entry := id(c.oracle.cluster, ch.uid, ch.version, ch.typ) + ": " + ch.namespace + "/" + ch.name
	if note != "" {
		entry += " (" + note + ")"
	}
	c.report.Missing = append(c.report.Missing, entry)
}
