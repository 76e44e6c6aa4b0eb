package source

import (
	"maps"
	"slices"
)

// This file finds which watches go on with what the watches of the last run knew. The configuration may have been edited in
// between: other selectors, other namespaces, another name of the source. Nothing that was known may be forgotten then, or
// its deletion would never be sent.

// findHeirs returns, for each watch of the last run, the watches that go on with it: itself, where the configuration still
// has it; else those of the same resource and an overlapping scope that are new, of several those whose selectors and source
// are most alike; else one of the same resource, which adopts the objects. Without any it is forgotten.
//
// A watch has several heirs where a source of the whole cluster becomes one of plain namespaces.
func findHeirs(watches []*watcher, kept map[string]Meta) (heirs map[string][]*watcher, forgotten map[string]Meta) {
	heirs, forgotten = map[string][]*watcher{}, map[string]Meta{}
	for _, id := range slices.Sorted(maps.Keys(kept)) {
		meta := kept[id]
		best := 0
		var found []*watcher
		for _, w := range watches {
			switch likeness := w.likeness(id, &meta, kept); {
			case likeness > best:
				best, found = likeness, []*watcher{w}
			case likeness == best && likeness > adopts:
				found = append(found, w)
			}
		}
		if best == 0 {
			forgotten[id] = meta
			continue
		}
		heirs[id] = found
	}
	return heirs, forgotten
}

// What makes a watch like one of the last run. The greater weighs more than the smaller ones together.
const (
	sameSource     = 1
	sameSelectors  = 2
	sameResource   = 4
	adopts         = sameResource + sameSelectors + sameSource // at most, for a watch that is not new or covers other namespaces
	overlaps       = 8
	identicalWatch = 16
)

// likeness is 0 for a watch of another resource.
func (w *watcher) likeness(id string, meta *Meta, kept map[string]Meta) int {
	if meta.Resource != w.state.Resource {
		return 0
	}
	if id == w.id {
		return identicalWatch
	}
	likeness := sameResource
	if _, continues := kept[w.id]; !continues && (meta.Namespace == w.state.Namespace || meta.Namespace == "" || w.state.Namespace == "") {
		likeness += overlaps
	}
	if meta.sameSelectors(&w.state.Meta) {
		likeness += sameSelectors
	}
	if meta.Source == w.options.Name {
		likeness += sameSource
	}
	return likeness
}

// inherits reports whether w, one of the heirs of a watch, goes on with the watch's objects of a namespace: if it selects
// them, or is the first of heirs that do not.
func (w *watcher) inherits(heirs []*watcher, namespace string) bool {
	return w.selects(namespace) || w == heirs[0] && !slices.ContainsFunc(heirs, func(h *watcher) bool { return h.selects(namespace) })
}
