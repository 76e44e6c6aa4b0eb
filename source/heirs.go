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
	heirs   []*watcher
	watches []*watcher // all of this run that are of its resource
	sent    uint64     // by highest
}

// findHeirs returns the watches of the last run, sorted by id, each with its heirs: the watches that take over its known set. One
// that is still configured is its own heir. For each of its pipelines that no longer takes from it, the heirs are the watches of the
// resource that the pipeline takes from: all new ones whose namespaces overlap, else the first. A watch without heirs is dropped. A
// Partial one may hold objects of any namespace: new watches inherit those even if it is still configured.
func findHeirs(watches []*watcher, kept map[string]Meta) []*lastWatch {
	var all []*lastWatch
	for _, id := range slices.Sorted(maps.Keys(kept)) {
		last := &lastWatch{id: id, Meta: kept[id]}
		for _, w := range watches {
			if w.id == id {
				last.heirs = append(last.heirs, w)
			}
			if w.state.Resource == last.Resource {
				last.watches = append(last.watches, w)
			}
		}
		for _, pipeline := range last.pipelines(watches) {
			continues := slices.ContainsFunc(last.heirs, func(h *watcher) bool { return h.id == id && h.feeds(pipeline) })
			for _, heir := range last.heirsFor(pipeline, kept, continues) {
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

// heirsFor returns watches of one source, since a pipeline takes a resource from one source only. continues is set if the watch itself
// is configured for the pipeline.
func (l *lastWatch) heirsFor(pipeline string, kept map[string]Meta, continues bool) (heirs []*watcher) {
	var first, others []*watcher
	for _, w := range l.watches {
		if !w.feeds(pipeline) {
			continue
		}
		if first == nil {
			first = []*watcher{w}
		}
		switch _, former := kept[w.id]; {
		case former:
		case l.overlaps(w):
			heirs = append(heirs, w)
		case l.Partial:
			others = append(others, w)
		}
	}
	switch {
	case continues:
		heirs = nil
	case heirs == nil:
		heirs = first
	}
	return append(heirs, others...)
}

// movedTo reports whether a pipeline that took the watch's namespaces from it takes them from w now.
func (l *lastWatch) movedTo(w *watcher) bool {
	return l.overlaps(w) && slices.ContainsFunc(l.Pipelines, func(pipeline string) bool {
		return w.feeds(pipeline) && !slices.ContainsFunc(l.heirs, func(h *watcher) bool { return h.id == l.id && h.feeds(pipeline) })
	})
}

// overlaps reports whether the namespaces of two watches have some in common.
func (l *lastWatch) overlaps(w *watcher) bool {
	return l.Namespace == w.state.Namespace || l.Namespace == "" || w.state.Namespace == ""
}

// apart reports whether the watch has no objects of the namespace that w selects.
func (l *lastWatch) apart(w *watcher) bool { return !l.overlaps(w) && !l.Partial }

// pipelinesOf returns the pipelines of w, an heir, for which w goes on with the objects of a namespace: all, if it selects the
// namespace; else those for which no watch does, and of whose heirs w is the first. A watch that selects it and is no heir sends the
// objects as a snapshot.
func (l *lastWatch) pipelinesOf(w *watcher, namespace string) (to PipelineSet) {
	if w.selects(namespace) {
		return w.options.all()
	}
	for n, pipeline := range w.options.Pipelines {
		feeds := func(h *watcher) bool { return h.feeds(pipeline) }
		first := l.heirs[slices.IndexFunc(l.heirs, feeds)]
		if first == w && !slices.ContainsFunc(l.watches, func(h *watcher) bool { return feeds(h) && h.selects(namespace) }) {
			to |= 1 << n
		}
	}
	return to
}

func (w *watcher) feeds(pipeline string) bool { return slices.Contains(w.options.Pipelines, pipeline) }
