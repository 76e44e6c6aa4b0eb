// Package source turns the resources that a configuration names into deltas.
//
// # From the API server to a handler
//
// Each [Source] has one watch per resource and scope. One goroutine at a time does all of it but the reading of the connection:
//
//	API server ─▶ frames ─▶ follower ─▶ process ─▶ Handler
//	              (bytes)   (position)  (known set)
//
// The follower opens watches again and again. It begins each where the last one ended, or with the whole state. The
// process function compares each object with the known set, the objects that exist at the position: what it has seen is
// dropped, what is new is a delta. docs/architecture.md has the reasons.
//
// Each known object has views: bits for the pipelines whose snapshot of it is due, for those that do not have it, and for
// those of them that had it, and were sent no DELETED since. The comparison of an object and its views decide which pipelines
// get which delta. The Handler reports whose filters passed it, in the moment in which it is placed in them, and that makes the
// new views.
//
// A [Handler] that blocks stalls its watch, and nothing else: nothing is read meanwhile, and the server keeps the rest.
package source
