// Package pipeline takes deltas, keeps them in a backlog, and delivers them to one sink. What is sent of a delta is decided by package
// [github.com/kubeferry/kubeferry/pipeline/shape], before the delta waits.
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
// When a call fails, either the sink accepts nothing or it does not accept these records. Both look alike, so the pipeline
// compares with what else succeeded. If nothing has since the batch was sent (or last failed), the sink is blamed, and the
// circuit breaker trips. While it is tripped, single records of changing objects probe the sink, and one success resets it. A
// gap or mark that waits has every second probe, and a namespace that was delivered in the minute before every second one of
// the rest. If something else did succeed, the batch is blamed: it is sent once more as it was, since a receiver may have
// stored it and may deduplicate it as a whole, then its objects are sent apart, each after its own backoff: their namespaces
// are suspect, and share no batch with others. If a batch of one namespace fails, its objects are isolated: sent alone. So a
// sink that is down gets few calls, and a poisoned record holds up its own object only; while it is found, its own namespace.
//
// A record that is refused for good makes its namespace suspect until its letter is written, and for 5 s: neither the letters nor a batch
// that the sink sends in halves hold up others. A slow call of which only some records fail makes their namespaces suspect, as the sink
// may hang on these, if they are at most half of its namespaces, or its only one, or had no success lately.
//
// Two cases are mixed. For 5 s after an isolated object failed while others were delivered, or some records of a call failed, and after a
// reset, up to nine failing calls in a row are themselves to blame: the same objects may be in them. And ten isolated objects that fail
// blame the sink, once nothing was delivered for 5 s; so do ten objects in a row that are refused for good.
//
// A delay that the peer requests (Retry-After) is the batch's own if something else got through since; its objects are sent apart, but
// seldom alone, since the peer may limit the rate of all calls. Else it is the sink's: three probes of ready objects may go within it,
// as the peer may limit the rate of one tenant, ten more of namespaces that had none, and the next when it is over.
//
// # Files
//
//	intake ─▶ shape ─▶ budget ─▶ take ─▶ backlog ─▶ dispatch ─▶ deliver ─▶ decide ─▶ settle
//	                               └─▶ log, loader, unload (disk) ────┘  breaker ┘
//
// docs/architecture.md follows a delta through them.
package pipeline
