package delta

import "time"

// Known is an object of a known set.
type Known struct {
	Namespace, Name string
	Version         Version
	// Filtered has a bit for each pipeline that does not have the object, mostly because of its filters, and Due one for
	// each whose snapshot has not reached it. The watch's meta lists the pipelines.
	Filtered, Due uint64
	// Retained is set if something of the object is retained for its next change. In a commit Previous is that, compressed, or
	// nil if the file has it already.
	Retained bool
	Previous []byte
}

// WatchChange is what happened to a watch's position and known set between two commits.
type WatchChange struct {
	// Watch is its id.
	Watch string
	Put   []Known
	// Remove holds objects of which only namespace and name count.
	Remove []Known
	// Meta is what else is kept of the watch, as JSON.
	Meta []byte
}

// LogKey is where an entry is in a pipeline's log.
type LogKey struct {
	// Flow is what the entry is read with: that of one namespace, say. It holds no zero byte.
	Flow string
	// Seq is the entry's number. All flows of a log share one sequence.
	Seq uint64
}

// Entry is a delta, a gap or a mark in a pipeline's log. One of Delta, Gap and Mark is set.
type Entry struct {
	LogKey
	Delta *Delta
	Gap   *Gap
	Mark  *Mark
	// Unsendable is why the delta may not leave as it is, and goes to the dead letter; empty if it may.
	Unsendable string
	// Attempts is how often it was sent, and Failed when that first failed.
	Attempts int
	Failed   time.Time
}

// Ref names the object, or the collection of a gap or mark.
func (e *Entry) Ref() Ref {
	switch {
	case e.Gap != nil:
		return e.Gap.Ref()
	case e.Mark != nil:
		return e.Mark.Ref()
	}
	return e.Delta.Ref()
}

// Observed is when the change, gap or mark was observed.
func (e *Entry) Observed() time.Time {
	switch {
	case e.Gap != nil:
		return e.Gap.Observed
	case e.Mark != nil:
		return e.Mark.Observed
	}
	return e.Delta.Observed
}

// Attempts is how often an entry that is in the log was sent, and when that first failed.
type Attempts struct {
	Seq      uint64
	Attempts int
	Failed   time.Time
}

// LogChange is what happened to a pipeline's log between two commits.
type LogChange struct {
	Pipeline string
	Append   []Entry
	// Attempts are of entries that are in the log already.
	Attempts []Attempts
	// Remove holds the keys of settled entries.
	Remove []LogKey
	// Redo is set after commits failed, which may have reached the disk all the same: what they left, which is every entry
	// from the number From on in any flow, goes before Append is applied.
	Redo bool
	From uint64
}

// Empty reports whether nothing happened.
func (c *LogChange) Empty() bool { return len(c.Append)+len(c.Attempts)+len(c.Remove) == 0 && !c.Redo }

// LogSize is how much a pipeline's log holds.
type LogSize struct {
	Entries uint64 `json:"entries"`
	Bytes   int64  `json:"bytes"`
	// Next is the number after the last entry ever appended.
	Next uint64 `json:"next"`
}
