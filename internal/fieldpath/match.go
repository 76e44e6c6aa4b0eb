package fieldpath

import "slices"

// place is one match: a member of a map or an item of a list.
type place struct {
	members map[string]any
	name    string
	items   []any
	index   int
}

func (p place) value() any {
	if p.members != nil {
		return p.members[p.name]
	}
	return p.items[p.index]
}

func (p place) set(value any) {
	if p.members != nil {
		p.members[p.name] = value
		return
	}
	p.items[p.index] = value
}

// each calls visit for every match of steps in value, until it fails. visit may change or delete what is there.
func each(value any, steps []Step, visit func(place) error) error {
	if len(steps) == 0 {
		return nil
	}
	step, rest := steps[0], steps[1:]
	reach := func(at place) error {
		if len(rest) == 0 {
			return visit(at)
		}
		return each(at.value(), rest, visit)
	}
	switch value := value.(type) {
	case map[string]any:
		if step.Kind == Every {
			for name := range value {
				if err := reach(place{members: value, name: name}); err != nil {
					return err
				}
			}
		} else if _, ok := value[step.Name]; ok && step.Kind == Name {
			return reach(place{members: value, name: step.Name})
		}
	case []any:
		switch {
		case step.Kind == Every:
			for i := range value {
				if err := reach(place{items: value, index: i}); err != nil {
					return err
				}
			}
		case step.Kind == Index && step.Index < len(value):
			return reach(place{items: value, index: step.Index})
		}
	}
	return nil
}

// Visit calls visit with the value of every match, in no certain order.
func (p Path) Visit(object map[string]any, visit func(value any)) {
	_ = each(object, p.steps, func(at place) error { // the visitor cannot fail
		visit(at.value())
		return nil
	})
}

// Exists reports whether the path matches anything.
func (p Path) Exists(object map[string]any) bool {
	exists := false
	p.Visit(object, func(any) { exists = true })
	return exists
}

// Replace puts what replace returns in the place of every match. It stops at the first error and returns it; then
// some matches may have been replaced.
func (p Path) Replace(object map[string]any, replace func(value any) (any, error)) error {
	return each(object, p.steps, func(at place) error {
		value, err := replace(at.value())
		if err == nil {
			at.set(value)
		}
		return err
	})
}

// removed stands where an item of a list was, until all paths are through: an index means the item of the list as it
// was.
type removed struct{}

// Remove takes the matches of all paths out of the object. Items that follow a removed one move up; indices are those
// before any removal. What is left empty stays.
func Remove(object map[string]any, paths ...Path) {
	var lists [][]Step // paths of the lists that lost items
	for _, path := range paths {
		_ = each(object, path.steps, func(at place) error { // the visitor cannot fail
			if at.members != nil {
				delete(at.members, at.name)
			} else {
				at.set(removed{})
			}
			return nil
		})
		if last := len(path.steps) - 1; last >= 0 && path.steps[last].Kind != Name {
			lists = append(lists, path.steps[:last])
		}
	}
	// Inner lists first: once a list is compacted, indices into it mean other items.
	slices.SortStableFunc(lists, func(a, b []Step) int { return len(b) - len(a) })
	for _, list := range lists {
		_ = each(object, list, func(at place) error {
			if items, ok := at.value().([]any); ok {
				at.set(slices.DeleteFunc(items, func(item any) bool { return item == removed{} }))
			}
			return nil
		})
	}
}
