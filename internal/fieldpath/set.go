package fieldpath

import "fmt"

// Set puts a copy of value in every place that the path names. Maps are created on the way, in the place of null too,
// but no items of lists: [*] and an index name what exists already, and where they name nothing, nothing is set.
//
// It fails if the path leads through something else than it says: a name through a string, say. Then some places may
// have been set. The error names no value and no key of the object that is not in the path.
func (p Path) Set(object map[string]any, value any) error {
	if len(p.steps) == 0 {
		return nil
	}
	return p.setIn(object, 0, value)
}

// setIn sets what is below container; i is the step that leads on from it.
func (p Path) setIn(container any, i int, value any) error {
	step := p.steps[i]
	switch container := container.(type) {
	case map[string]any:
		switch step.Kind {
		case Name:
			return p.setAt(place{members: container, name: step.Name}, i, value)
		case Every:
			for name := range container {
				if err := p.setAt(place{members: container, name: name}, i, value); err != nil {
					return err
				}
			}
			return nil
		}
	case []any:
		switch {
		case step.Kind == Index && step.Index >= len(container):
			return nil
		case step.Kind == Index:
			return p.setAt(place{items: container, index: step.Index}, i, value)
		case step.Kind == Every:
			for j := range container {
				if err := p.setAt(place{items: container, index: j}, i, value); err != nil {
					return err
				}
			}
			return nil
		}
	}
	wanted := map[Kind]string{Name: "a map", Index: "a list", Every: "a list or a map"}[step.Kind]
	return fmt.Errorf("%s is %s, not %s", p.Head(i), noun(container), wanted)
}

// setAt sets the place that step i leads to, or goes on from it.
func (p Path) setAt(at place, i int, value any) error {
	rest := p.steps[i+1:]
	if len(rest) == 0 {
		at.set(Clone(value))
		return nil
	}
	next := at.value()
	if next == nil {
		if !allNames(rest) {
			return nil
		}
		next = map[string]any{}
		at.set(next)
	}
	return p.setIn(next, i+1, value)
}

// noun says what a value is, without saying the value.
func noun(value any) string {
	switch value.(type) {
	case nil:
		return "null"
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case string:
		return "a string"
	case bool:
		return "true or false"
	default:
		return "a number"
	}
}

// Clone is a copy of a decoded value that shares no map and no list with it.
func Clone(value any) any {
	switch value := value.(type) {
	case map[string]any:
		if value == nil {
			return value
		}
		members := make(map[string]any, len(value))
		for name, member := range value {
			members[name] = Clone(member)
		}
		return members
	case []any:
		if value == nil {
			return value
		}
		items := make([]any, len(value))
		for i, item := range value {
			items[i] = Clone(item)
		}
		return items
	default:
		return value
	}
}
