package pipeline

import (
	"slices"

	"github.com/kubeferry/kubeferry/delta"
)

// Filter decides whether a delta concerns a pipeline. It must not modify it.
type Filter interface {
	Pass(d *delta.Delta) bool
}

// TypesFilter passes deltas of the types it lists.
type TypesFilter []delta.Type

// Pass implements [Filter].
func (f TypesFilter) Pass(d *delta.Delta) bool { return slices.Contains(f, d.Type) }

// NamespacesFilter passes the objects of the selected namespaces, and every cluster-scoped object.
type NamespacesFilter delta.Namespaces

// Pass implements [Filter].
func (f NamespacesFilter) Pass(d *delta.Delta) bool {
	namespace := d.Object.Namespace()
	return namespace == "" || delta.Namespaces(f).Match(namespace)
}
