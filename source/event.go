package source

import (
	"errors"

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
	// resourceVersion is, for end, that of the state between begin and end, for bookmark the new position, and for
	// compared the server's present one.
	resourceVersion string
	// exact is set on begin if the state is the one at the position.
	exact bool
	// refused is set on begin, and on gone, when the history since the position cannot be had.
	refused *refusal
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

// errHistoryGone is why the history of a resource that is gone cannot be had.
var errHistoryGone = errors.New("the resource is gone, and its history with it")

// refusal is a stretch of history that the API server would not give.
type refusal struct {
	from, to string
	reason   string
}

// goneMarker is the marker for a resource that discovery does not list any more. What happened to its objects since the
// position, if there is one, cannot be read; refused is an earlier refusal that no state has closed.
func goneMarker(refused *refusal, position string, endedCleanly bool) *marker {
	if refused != nil || position == "" {
		return &marker{kind: gone, refused: refused}
	}
	refused = &refusal{from: position, reason: errHistoryGone.Error()}
	return &marker{kind: gone, refused: refused, endedCleanly: endedCleanly}
}
