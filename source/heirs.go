package source

import (
	"maps"
	"slices"
)

// This file assigns the known sets of the last run to the watches of this one. The configuration may have been edited in between:
// other selectors or namespaces, sources renamed, split or merged, a pipeline that takes from another source. If the objects that
// a pipeline had were dropped, their deletions would never be sent to it.

// lastWatch is a watch of the last run, with the watches that go on with it.
type lastWatch struct {
	id string
	Meta
	heirs []*watcher
}

// findHeirs returns the watches of the last run, sorted by id, each with its heirs. A watch that is still configured inherits from
// itself. For each pipeline that had its objects and no longer takes from it, the heirs are the watches of the same resource that
// the pipeline takes from: all new ones whose namespaces overlap, else the first. A watch without heirs is dropped.
func findHeirs(watches []*watcher, kept map[string]Meta) []*lastWatch {
	var all []*lastWatch
	for _, id := range slices.Sorted(maps.Keys(kept)) {
		last := &lastWatch{id: id, Meta: kept[id]}
		for _, w := range watches {
			if w.id == id {
				last.heirs = append(last.heirs, w)
			}
		}
		for _, pipeline := range last.pipelines(watches) {
			if slices.ContainsFunc(last.heirs, func(h *watcher) bool { return h.id == id && h.feeds(pipeline) }) {
				continue
			}
			for _, heir := range last.heirsFor(pipeline, watches, kept) {
				if !slices.Contains(last.heirs, heir) {
					last.heirs = append(last.heirs, heir)
				}
			}
		}
		all = append(all, last)
	}
	return all
}

// pipelines returns those that the watch was for; older files list none.
func (l *lastWatch) pipelines(watches []*watcher) (names []string) {
	if l.Pipelines != nil {
		return l.Pipelines
	}
	for _, w := range watches {
		names = append(names, w.options.Pipelines...)
	}
	return names
}

// heirsFor returns watches of one source, since a pipeline takes a resource from one source only.
func (l *lastWatch) heirsFor(pipeline string, watches []*watcher, kept map[string]Meta) (heirs []*watcher) {
	var first []*watcher
	for _, w := range watches {
		if w.state.Resource != l.Resource || !w.feeds(pipeline) {
			continue
		}
		if first == nil {
			first = []*watcher{w}
		}
		if _, continues := kept[w.id]; !continues && l.overlaps(w) {
			heirs = append(heirs, w)
		}
	}
	if heirs == nil {
		return first
	}
	return heirs
}

// overlaps reports whether the namespaces of two watches have some in common.
func (l *lastWatch) overlaps(w *watcher) bool {
	return l.Namespace == w.state.Namespace || l.Namespace == "" || w.state.Namespace == ""
}

// pipelinesOf returns the pipelines of w, an heir, for which w goes on with the objects of a namespace: all, if it selects the
// namespace; else those for which no heir does, of which w is the first.
func (l *lastWatch) pipelinesOf(w *watcher, namespace string) (to PipelineSet) {
	if w.selects(namespace) {
		return w.options.all()
	}
	for n, pipeline := range w.options.Pipelines {
		feeding := slices.DeleteFunc(slices.Clone(l.heirs), func(h *watcher) bool { return !h.feeds(pipeline) })
		if feeding[0] == w && !slices.ContainsFunc(feeding, func(h *watcher) bool { return h.selects(namespace) }) {
			to |= 1 << n
		}
	}
	return to
}

func (w *watcher) feeds(pipeline string) bool { return slices.Contains(w.options.Pipelines, pipeline) }
