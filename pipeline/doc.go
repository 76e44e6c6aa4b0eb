// Package pipeline takes deltas, keeps them in a backlog, encodes them, and delivers them to one sink.
//
// # Order and retry
//
// The backlog is a workqueue of objects and, beside it, the pending deltas of each object in order, because a
// workqueue merges equal keys and a pipeline may not. The queue hands an object to one batch at a time: that gives
// order per object, and parallelism across objects. One dispatcher gathers ready objects into batches; an object is
// done only when its records are settled: acknowledged, or written to the dead letter. A record that failed stays at
// the head of its object.
//
// # Whose fault
//
// When a call fails, either the sink cannot take anything or it cannot take this. Both look alike, so the pipeline
// goes by what else succeeded: if nothing has since the batch was sent (or last failed), the sink is blamed, and the
// gate closes. While the gate is closed, single records of changing objects probe, and one success opens it. If
// something else did succeed, the batch is blamed: it is tried once more as it was, since a receiver may have taken
// it and deduplicate it as a whole, then its records travel alone, each object in its own backoff. So a dead sink is
// asked rarely, and a poisoned record stops nobody but its own object.
package pipeline
