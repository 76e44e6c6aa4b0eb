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

// Visit calls f with the value of each match. Members of a map come in the order of their names.
func (p Path) Visit(object map[string]any, f func(value any)) {
	p.visit(object, func(at place) { f(at.value()) })
}

// Exists reports whether the path matches anything.
func (p Path) Exists(object map[string]any) bool {
	exists := false
	p.visit(object, func(place) { exists = true })
	return exists
}

// Replace calls replace for each match, and puts the value that it returns in place of the old one. replace gets the path of the match, which
// has an index or a name in place of each [*]. The first error ends Replace, which returns it. Then some matches may be replaced already.
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

// Set sets each place that the path names to a copy of value. It creates maps that are missing on the way, also in place of a null. It does not
// create items of lists: if an index or a [*] matches nothing, nothing is set there.
//
// It fails if a step is of the wrong kind, such as a name at a string. Then some places may be set already. The error contains no value of
// the object, and only names that are in the path.
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

// Remove removes the matches of all paths from the object. Items behind a removed one move up. An index in a path means the
// place of the item before anything is removed. Maps and lists that become empty stay.
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
