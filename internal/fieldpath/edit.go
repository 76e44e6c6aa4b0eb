package fieldpath

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// visit calls f for every match.
func (p Path) visit(object map[string]any, f func(place)) {
	w := walker{steps: p.steps, visit: func(at place) error { f(at); return nil }}
	_ = w.in(object, nil) // f cannot fail
}

// Visit calls f with the value of every match.
func (p Path) Visit(object map[string]any, f func(value any)) {
	p.visit(object, func(at place) { f(at.value()) })
}

// Exists reports whether the path matches anything.
func (p Path) Exists(object map[string]any) bool {
	exists := false
	p.visit(object, func(place) { exists = true })
	return exists
}

// Replace replaces the value of every match by what replace returns for it and its path, which has indices and names for [*]. It
// stops at the first error; then some matches may have been replaced.
func (p Path) Replace(object map[string]any, replace func(at Path, value any) (any, error)) error {
	w := walker{steps: p.steps, visit: func(at place) error {
		value, err := replace(Path{steps: slices.Clone(at.steps)}, at.value())
		if err == nil {
			at.set(value)
		}
		return err
	}}
	return w.in(object, nil)
}

// Set puts a copy of value in every place that the path names. Maps are created on the way, in the place of null too,
// but no items of lists: [*] and an index name what exists already, and where they name nothing, nothing is set.
//
// It fails if a step does not fit what is there: a name at a string, for example. Then some places may have been set. The error
// contains no value and no key of the object that is not in the path.
func (p Path) Set(object map[string]any, value any) error {
	w := walker{steps: p.steps, create: true, visit: func(at place) error {
		at.set(runtime.DeepCopyJSONValue(value))
		return nil
	}}
	return w.in(object, nil)
}

// removed stands where an item of a list was, until all paths are through: an index means the item of the list as it
// was.
type removed struct{}

// Remove takes the matches of all paths out of the object. Items that follow a removed one move up; indices are those
// before any removal. What is left empty stays.
func Remove(object map[string]any, paths ...Path) {
	var lists []Path // those that lost items
	for _, path := range paths {
		path.visit(object, func(at place) {
			if at.members != nil {
				delete(at.members, at.last().Name)
			} else {
				at.set(removed{})
			}
		})
		if last := path.Len() - 1; last >= 0 && path.At(last).Kind != Name {
			lists = append(lists, path.Head(last))
		}
	}
	// Inner lists first: once a list is compacted, indices into it mean other items.
	slices.SortStableFunc(lists, func(a, b Path) int { return b.Len() - a.Len() })
	for _, list := range lists {
		list.visit(object, func(at place) {
			if items, ok := at.value().([]any); ok {
				at.set(slices.DeleteFunc(items, func(item any) bool { return item == removed{} }))
			}
		})
	}
}
