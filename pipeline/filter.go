package pipeline

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Filter is one condition of a pipeline: a change passes that passes all of them. It is called from several
// goroutines.
type Filter interface {
	// Pass says whether a change passes. An error means that it cannot tell, and that the change shall go to the dead
	// letter; it must not hold values of the object.
	Pass(c *Change) (bool, error)
	// OfObject reports whether the answer depends on the object alone, not on what happened to it: such filters say
	// which objects a pipeline is told of, the others which changes of them.
	OfObject() bool
}

// TypesFilter passes deltas of the types it lists.
type TypesFilter []delta.Type

// Pass implements [Filter].
func (f TypesFilter) Pass(c *Change) (bool, error) { return f.has(c.observed.Type), nil }

// OfObject implements [Filter].
func (TypesFilter) OfObject() bool { return false }

func (f TypesFilter) has(t delta.Type) bool { return slices.Contains(f, t) }

// NamespacesFilter passes the objects of the selected namespaces, and every cluster-scoped object.
type NamespacesFilter delta.Namespaces

// Pass implements [Filter].
func (f NamespacesFilter) Pass(c *Change) (bool, error) {
	namespace := c.observed.Object.Namespace()
	return namespace == "" || delta.Namespaces(f).Match(namespace), nil
}

// OfObject implements [Filter].
func (NamespacesFilter) OfObject() bool { return true }
