// Package source turns the resources that a configuration names into deltas.
//
// # From the API server to a handler
//
// Each [Source] has one watch per resource and scope. A watch runs client-go's informer machinery, the Reflector
// and the RealFIFO, between a ListerWatcher and a process function of our own:
//
//	API server ─▶ serializer ─▶ listerWatcher ─▶ Reflector ─▶ RealFIFO ─▶ process ─▶ Handler
//	                (bytes)      (position)                             (known set)
//
// The Reflector lists again for many reasons that lose nothing. So the listerWatcher answers each list itself, with
// an empty one at its position, and the Reflector simply watches on from there. Only without a position, or once
// the server refused it (410), does a watch begin with the real state, whose objects are forwarded one by one as
// ordinary events between two notes, begin and end. Nothing ever holds a whole list.
//
// The process function compares each object with the known set, the objects that exist at the position: what it
// has seen is dropped, what is new is a delta. Absence is concluded from a complete list only, never from an error,
// a lost right or a missing resource; a resource that discovery proves gone took its objects along.
//
// A [Handler] that blocks stalls its watch, and nothing else: the FIFO's lock is held meanwhile, so the Reflector
// stops reading, and the server keeps the rest.
package source
