package source

import (
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// event is what a follower passes to the process function: an object that a watch sent, or a marker.
type event struct {
	kind   watch.EventType // ADDED, MODIFIED or DELETED
	object *delta.Object
	marker *marker // if set, the event is nothing else
}

// marker separates the objects that a follower passes on.
type marker struct {
	kind markerKind
	// resourceVersion is that of the state on begin, if it is known, and on end; the new position on bookmark; and the
	// server's present one on compared.
	resourceVersion string
	// exact is set on begin if the state is the one at the position.
	exact bool
	// refused is set on begin, and on gone, if the server refused the history since the position: its reason.
	refused string
	// endedCleanly is set on gone if the server ended the watch itself just before: if every known object was deleted by
	// then, nothing was missed.
	endedCleanly bool
}

type markerKind int

const (
	// begin: what follows, up to end, is the state of the whole collection, and changes to it.
	begin markerKind = iota
	// end: the state is complete.
	end
	// abandon: the state that begin announced stays incomplete; what follows are changes since the position.
	abandon
	// bookmark: nothing that the watch selects changed up to a resource version.
	bookmark
	// gone: according to discovery the resource does not exist any more.
	gone
	// compared: the last run's position was compared with the server's present resource version.
	compared
)
