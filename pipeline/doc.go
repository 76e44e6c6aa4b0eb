// Package pipeline takes deltas, keeps them in a backlog, and delivers them to one sink.
//
// What is sent of a delta is decided by package [github.com/kubeferry/kubeferry/pipeline/shape], before the delta waits. What is sent next, and
// what a failure shows, is decided by package [github.com/kubeferry/kubeferry/pipeline/flow]: its documentation has the rules. This package
// does what these two do not: it bounds memory and disk, makes the calls, writes dead letters, and counts.
//
// # What waits where
//
// Each object has its deltas in order, and one batch at a time holds an object. So there is order per object, and parallelism across objects. All
// that waits of a namespace is a flow; cluster-scoped objects are one, and gaps and marks (the ends of snapshots) are one.
//
// A delta is in memory, or in the log only, behind the cursor of its flow (log.go). A loader reads what is behind the cursors, the flows in turn, as
// far as there is room (loader.go). The deltas of an object that fails leave memory once a commit has written them; a stub of each
// stays, and the delta is read again when it is sent (unload.go). A flow with too many stubs is stopped: what is new of it waits behind its
// cursor, and nothing of other flows waits for that.
//
// A gap or a mark holds nothing back. A mark is taken once all that was taken before it of its watch is settled (Settled in snapshot.go).
//
// # What becomes of a record
//
// It is settled when the sink has acknowledged it, or its dead letter is written. A letter that cannot be written leaves the record where it was.
// Received + restored = filtered + delivered + dead + waiting, always.
//
// After kill -9 the log is delivered again: what was acknowledged since the last commit is sent twice, under the same ids. Package
// [github.com/kubeferry/kubeferry/internal/checkpoint] has the commits.
//
// # Files
//
//	intake ─▶ (shape) ─▶ budget ─▶ dispatch ─▶ deliver ─▶ judge ─▶ deadletter ─▶ settle
//	                       └─▶ log, loader, unload (disk) ──┘
//
// shape is the package of that name; dispatch and judge call package flow. docs/architecture.md follows a delta through them.
package pipeline
