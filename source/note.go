package source

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// note is what the listerWatcher tells the process function between the objects. It travels through the Reflector
// and the FIFO as a modified object, so that its order among the deltas is theirs.
type note struct {
	metav1.ObjectMeta // empty; the Reflector asks for one

	kind noteKind
	// resourceVersion is, for end, that of the state between begin and end.
	resourceVersion string
	// exact says, on begin, that the state is the one at the position.
	exact bool
	// refused is set on begin, and on gone, when the server refused the position.
	refused *refusal
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
)

// refusal is a stretch of history that the API server would not give.
type refusal struct {
	from, to string
	reason   string
	// unclean says that the position was the last run's, and that run ended without a last commit.
	unclean bool
}

// GetObjectKind implements [runtime.Object].
func (*note) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object]; a note is immutable.
func (n *note) DeepCopyObject() runtime.Object { return n }
