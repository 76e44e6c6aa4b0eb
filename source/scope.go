package source

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// maxNamespaceWatches bounds the watches that plain namespace names are turned into. One watch of a namespace costs
// the API server about as much as one of the cluster, and carries less; beyond this many the connections and the
// watchers would cost more than the events of the other namespaces do.
const maxNamespaceWatches = 20

// scope is what one watch covers.
type scope struct {
	namespace     string // empty for the whole cluster
	fieldSelector string
	// namespaces is what the API server cannot select by itself; it selects all where nothing is left to do.
	namespaces delta.Namespaces
}

// scopes plans the watches of one namespaced resource so that the API server sends as little as it can: a watch per
// namespace where plain names are included, else one of the cluster whose field selector leaves the excluded plain
// names out. The plan depends on the configuration only, and so do the rights that it needs.
func scopes(namespaces delta.Namespaces, fieldSelector string) []scope {
	if n := len(namespaces.Include); n > 0 && n <= maxNamespaceWatches && !slices.ContainsFunc(namespaces.Include, delta.IsGlob) {
		var plan []scope
		for _, namespace := range slices.Compact(slices.Sorted(slices.Values(namespaces.Include))) {
			if namespaces.Match(namespace) {
				plan = append(plan, scope{namespace: namespace, fieldSelector: fieldSelector})
			}
		}
		return plan
	}
	terms := []string{fieldSelector}
	for _, namespace := range namespaces.Exclude {
		if !delta.IsGlob(namespace) {
			terms = append(terms, fields.OneTermNotEqualSelector("metadata.namespace", namespace).String())
		}
	}
	terms = slices.DeleteFunc(terms, func(term string) bool { return term == "" })
	return []scope{{fieldSelector: strings.Join(terms, ","), namespaces: namespaces}}
}

// selects reports whether the watch includes a namespace; an empty one is that of an object without.
func (m *Meta) selects(namespace string) bool {
	if m.Namespace != "" {
		return namespace == m.Namespace
	}
	return namespace == "" || m.Namespaces.Match(namespace)
}

func (w *watcher) selects(namespace string) bool { return w.state.selects(namespace) }
