package source

import (
	"context"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

var namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// namespaceSet is the namespaces that a selector selects. It is the handler of a watch of its own, which has no pipelines: so a namespace
// leaves the set only by an event, or because a complete list does not have it.
type namespaceSet struct {
	NoPipelines
	watch *Source
	wake  func()

	mu    sync.Mutex // guards what follows
	names map[string]struct{}
}

var _ Handler = (*namespaceSet)(nil)

func newNamespaceSet(s *Source, wake func()) *namespaceSet {
	n := &namespaceSet{wake: wake, names: map[string]struct{}{}}
	n.watch = New(s.client, Options{
		Name: s.options.Name, Resources: []schema.GroupVersionResource{namespaces}, LabelSelector: s.options.NamespaceSelector,
		Check: s.options.Check, Backoff: s.options.Backoff, absence: s.options.absence,
	}, n, s.metrics, s.logger)
	return n
}

// all are the names, sorted.
func (n *namespaceSet) all() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Sorted(maps.Keys(n.names))
}

// complete reports whether all namespaces were read once.
func (n *namespaceSet) complete() bool { return n.watch.watches[0].health.wasRead() }

// Delta implements [Handler].
func (n *namespaceSet) Delta(_ context.Context, d *delta.Delta, _ Recipients, record func(PipelineSet)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if d.Type == delta.Deleted {
		delete(n.names, d.Object.Name())
	} else {
		n.names[d.Object.Name()] = struct{}{}
	}
	record(0)
	n.wake()
	return nil
}
