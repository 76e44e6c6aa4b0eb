package fieldpath

import (
	"fmt"
	"maps"
	"slices"
)

// place is one match: a member of a map or an item of a list.
type place struct {
	members map[string]any
	items   []any
	// steps lead to the place, by names and indices alone. The last one is its name or index. They are the walk's own.
	steps []Step
}

func (p place) last() Step { return p.steps[len(p.steps)-1] }

func (p place) value() any {
	if p.members != nil {
		return p.members[p.last().Name]
	}
	return p.items[p.last().Index]
}

func (p place) set(value any) {
	if p.members != nil {
		p.members[p.last().Name] = value
		return
	}
	p.items[p.last().Index] = value
}

// walker finds the matches of a path, in order.
type walker struct {
	steps []Step
	// visit may change or remove what is at the place. The walk ends with its first error.
	visit func(place) error
	// create makes the maps that are missing, and fails where a step does not fit what is there.
	create bool
}

// in visits the matches in value, which is at the place that as many steps lead to as at has.
func (w walker) in(value any, at []Step) error {
	if len(w.steps) == 0 {
		return nil
	}
	step := w.steps[len(at)]
	members, isMap := value.(map[string]any)
	items, isList := value.([]any)
	var places []Step // what the step stands for here
	switch {
	case step.Kind == Every && isMap:
		for _, name := range slices.Sorted(maps.Keys(members)) {
			places = append(places, Step{Kind: Name, Name: name})
		}
	case step.Kind == Every && isList:
		for i := range items {
			places = append(places, Step{Kind: Index, Index: i})
		}
	case step.Kind == Name && isMap:
		if _, there := members[step.Name]; there || w.create {
			places = []Step{step}
		}
	case step.Kind == Index && isList:
		if step.Index < len(items) {
			places = []Step{step}
		}
	case w.create:
		wanted := map[Kind]string{Name: "a map", Index: "a list", Every: "a list or a map"}[step.Kind]
		return fmt.Errorf("%s is %s, not %s", Path{steps: w.steps[:len(at)]}, noun(value), wanted)
	}
	for _, here := range places {
		if err := w.at(place{members: members, items: items, steps: append(at, here)}); err != nil {
			return err
		}
	}
	return nil
}

// at visits a place, or goes on from it.
func (w walker) at(p place) error {
	rest := w.steps[len(p.steps):]
	if len(rest) == 0 {
		return w.visit(p)
	}
	value := p.value()
	if value == nil && w.create {
		if !(Path{rest}).namesOnly() {
			return nil
		}
		value = map[string]any{}
		p.set(value)
	}
	return w.in(value, p.steps)
}

// noun is the kind of a value, without the value.
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
