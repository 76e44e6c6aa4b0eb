package expr

import (
	"maps"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Input has an expression's variables. Each is read only if the evaluation comes to it. What Object and OldObject return is never changed.
// Both may be called several times. Evaluations that share the Input may call them at the same time.
type Input interface {
	Object() (map[string]any, error)
	OldObject() (map[string]any, error) // nil if there is none
	Type() string
	Resource() schema.GroupVersionResource
	Snapshot() bool
	Inferred() bool
	// ChangedBy are the field managers that made the change, each with manager, operation, subresource and time; none if that is
	// unknown.
	ChangedBy() []map[string]string
}

// Message is the input of a [Body].
type Message interface {
	Input
	ID() string
	Sequence() string // empty if there is none
	Cluster() string
	Time() time.Time
	Notice() map[string]any // what a gap or a mark says; nil for a change, as Object is for these
}

// Identity are the fields of an object that do not need decoding. A field that the object does not have is empty.
type Identity struct {
	APIVersion, Kind                      string
	Namespace, Name, UID, ResourceVersion string
}

// Identified is an [Input] that has the identity of the object without decoding it. An expression that reads nothing else
// of the object is then evaluated without a call of Object.
type Identified interface {
	Input
	Identity() Identity
}

// Metered is an [Input] whose evaluations share a budget with those of others. A step is one of CEL's units of cost.
type Metered interface {
	Input
	// Brief reports whether the evaluation may take no more than [BriefLimit] steps.
	Brief() bool
	// Spent is called with the steps that the evaluation took.
	Spent(steps uint64)
}

// activation looks the variables up in an Input, for one evaluation.
type activation struct {
	in       Input
	identity bool // the expression reads nothing of object but its identity
	object   any
	old      any
	err      error // of the input
}

var _ cel.Activation = (*activation)(nil)

// ResolveName implements [cel.Activation].
func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case varObject:
		if a.object == nil {
			a.object = a.readObject()
		}
		return a.object, true
	case varOldObject:
		if a.old == nil {
			a.old = a.read(a.in.OldObject)
		}
		return a.old, true
	case varType:
		return a.in.Type(), true
	case varResource:
		r := a.in.Resource()
		return map[string]any{"group": r.Group, "version": r.Version, "resource": r.Resource}, true
	case varSnapshot:
		return a.in.Snapshot(), true
	case varInferred:
		return a.in.Inferred(), true
	case varChangedBy:
		return a.in.ChangedBy(), true
	}
	message, ok := a.in.(Message)
	if !ok {
		return nil, false
	}
	switch name {
	case varID:
		return message.ID(), true
	case varSequence:
		return message.Sequence(), true
	case varCluster:
		return message.Cluster(), true
	case varTime:
		return message.Time(), true
	case varNotice:
		return a.read(func() (map[string]any, error) { return message.Notice(), nil }), true
	}
	return nil, false
}

// Parent implements [cel.Activation].
func (a *activation) Parent() cel.Activation { return nil }

func (a *activation) readObject() any {
	if a.identity {
		if in, ok := a.in.(Identified); ok {
			return in.Identity().object()
		}
	}
	return a.read(a.in.Object)
}

// read returns the map of an object, null if there is none, or an error value: the evaluation may still have a result
// that does not depend on it.
func (a *activation) read(object func() (map[string]any, error)) any {
	m, err := object()
	switch {
	case err != nil:
		a.err = &InputError{cause: err}
		return types.WrapErr(a.err)
	case m == nil:
		return types.NullValue
	default:
		return m
	}
}

// InputError is the error of an object that could not be read. Its text does not hold the cause's, which may quote the object.
type InputError struct{ cause error }

func (e *InputError) Error() string { return "the object cannot be decoded" }

// Unwrap returns the error of the [Input].
func (e *InputError) Unwrap() error { return e.cause }

// object is an object with the fields of the identity that are not empty.
func (id Identity) object() map[string]any {
	metadata := map[string]string{"name": id.Name, "namespace": id.Namespace, "uid": id.UID, "resourceVersion": id.ResourceVersion}
	maps.DeleteFunc(metadata, func(_, value string) bool { return value == "" })
	object := map[string]any{"metadata": metadata, "apiVersion": id.APIVersion, "kind": id.Kind}
	maps.DeleteFunc(object, func(_ string, value any) bool { return value == "" })
	return object
}
