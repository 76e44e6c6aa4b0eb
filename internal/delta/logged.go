package delta

import "time"

// Known is an object of a known set.
type Known struct {
	Namespace, Name string
	Version         Version
	// Filtered has a bit for each pipeline that does not have the object, mostly because of its filters. Had has a bit for each of these that had
	// the object, and was sent no DELETED of it since. Due has a bit for each pipeline whose snapshot has not come to the object yet. The
	// watch's meta lists the pipelines in the order of their bits.
	Filtered, Had, Due uint64
	// Era counts the snapshots of the watch that had begun when the object was written. An object is also due for those that began later.
	Era uint32
	// Retained is set if the state file keeps this version of the object for the next change. In a commit, Previous is that version,
	// compressed. It is nil if the file has it already.
	Retained bool
	Previous []byte
}

// WatchChange is what changed in a watch's position and known set between two commits.
type WatchChange struct {
	// Watch is the id of the watch.
	Watch string
	// Put has the objects that are new in the known set, or have changed in it.
	Put []Known
	// Remove has the objects that left the known set. Only their namespace and name are set.
	Remove []Known
	// Meta is the position and everything else that is kept of the watch, as JSON.
	Meta []byte
}

// LogKey is the place of an entry in a pipeline's log.
type LogKey struct {
	// Flow names the entries that are read together, such as those of one namespace. It has no zero byte.
	Flow string
	// Seq is the entry's number. All flows of a log share one sequence.
	Seq uint64
}

// Entry is a delta, a gap or a mark in a pipeline's log. Exactly one of Delta, Gap and Mark is set.
type Entry struct {
	LogKey
	Delta *Delta
	Gap   *Gap
	Mark  *Mark
	// Unsendable says why the delta must not be sent, and becomes a dead letter. It is empty if the delta may be sent.
	Unsendable string
	// Attempts is how many of its failures count towards retry.attempts, and Failed is when it first failed.
	Attempts int
	Failed   time.Time
}

// Ref returns the object of the delta, or the resource and namespace of the gap or mark.
func (e *Entry) Ref() Ref {
	switch {
	case e.Gap != nil:
		return e.Gap.Ref()
	case e.Mark != nil:
		return e.Mark.Ref()
	}
	return e.Delta.Ref()
}

// Observed returns when the change, gap or mark was observed.
func (e *Entry) Observed() time.Time {
	switch {
	case e.Gap != nil:
		return e.Gap.Observed
	case e.Mark != nil:
		return e.Mark.Observed
	}
	return e.Delta.Observed
}

// Attempts are the failures of an entry that is in the log already: how many count towards retry.attempts, and when it first failed.
type Attempts struct {
	Seq      uint64
	Attempts int
	Failed   time.Time
}

// LogChange is what changed in a pipeline's log between two commits.
type LogChange struct {
	Pipeline string
	Append   []Entry
	// Attempts has the failures of entries that are in the log already.
	Attempts []Attempts
	// Remove has the keys of settled entries.
	Remove []LogKey
	// Redo is set after commits failed. They may have reached the disk all the same. So every entry whose Seq is From or higher is removed,
	// in all flows, before Append is applied.
	Redo bool
	From uint64
}

// Empty reports whether there is nothing to write.
func (c *LogChange) Empty() bool { return len(c.Append)+len(c.Attempts)+len(c.Remove) == 0 && !c.Redo }

// LogSize is the size of a pipeline's log.
type LogSize struct {
	Entries uint64 `json:"entries"`
	Bytes   int64  `json:"bytes"`
	// Next is the Seq that the next entry gets. It grows even if entries are removed.
	Next uint64 `json:"next"`
}
