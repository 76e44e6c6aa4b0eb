package source

import (
	"errors"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// event is one thing that a follower tells the process function: what a watch sent, or a note.
type event struct {
	kind   watch.EventType
	object *delta.Object
	note   *note // if set, the event is nothing else
}

// note is what a follower tells the process function between the objects.
type note struct {
	kind noteKind
	// resourceVersion is, for end, that of the state between begin and end, and for compared the server's.
	resourceVersion string
	// exact says, on begin, that the state is the one at the position.
	exact bool
	// refused is set on begin, and on gone, when the history since the position cannot be had.
	refused *refusal
	// witnessed says, on gone, that the server ended the watch itself just before: if every known object was deleted by
	// then, nothing was missed.
	witnessed bool
}

type noteKind int

const (
	// begin: what follows, up to end, is the state of the whole collection, and changes to it.
	begin noteKind = iota
	// end: the state is complete.
	end
	// abandon: what begin announced does not come to its end; what follows are changes since the position.
	abandon
	// gone: discovery says that the resource does not exist any more.
	gone
	// compared: the last run's position was held against the server's present resource version.
	compared
)

// errHistoryGone is why the history of a resource that is gone cannot be had.
var errHistoryGone = errors.New("the resource is gone, and its history with it")

// refusal is a stretch of history that the API server would not give.
type refusal struct {
	from, to string
	reason   string
}

// goneNote is the note for a resource that discovery does not know any more. What happened to its objects since the
// position, if there is one, cannot be read; refused is an earlier refusal that no state has closed.
func goneNote(refused *refusal, position string, witnessed bool) *note {
	if refused != nil || position == "" {
		return &note{kind: gone, refused: refused}
	}
	refused = &refusal{from: position, reason: errHistoryGone.Error()}
	return &note{kind: gone, refused: refused, witnessed: witnessed}
}
