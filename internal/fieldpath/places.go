package fieldpath

import (
	"maps"
	"slices"
)

// Place is one match of a path: where it is, by names and indices alone, and what is there.
type Place struct {
	Path  Path
	Value any
}

// Places lists the matches of the path, in order.
func (p Path) Places(object map[string]any) []Place {
	var places []Place
	placesIn(object, nil, p.steps, func(found Place) { places = append(places, found) })
	return places
}

func placesIn(value any, at, steps []Step, found func(Place)) {
	if len(steps) == 0 {
		found(Place{Path{steps: slices.Clone(at)}, value})
		return
	}
	step, rest := steps[0], steps[1:]
	below := func(s Step, value any) { placesIn(value, append(at[:len(at):len(at)], s), rest, found) }
	switch value := value.(type) {
	case map[string]any:
		if step.Kind == Every {
			for _, name := range slices.Sorted(maps.Keys(value)) {
				below(Step{Kind: Name, Name: name}, value[name])
			}
		} else if child, ok := value[step.Name]; ok && step.Kind == Name {
			below(step, child)
		}
	case []any:
		switch {
		case step.Kind == Every:
			for i, item := range value {
				below(Step{Kind: Index, Index: i}, item)
			}
		case step.Kind == Index && step.Index < len(value):
			below(step, value[step.Index])
		}
	}
}

// Difference is a place whose value differs between two versions of an object. WasThere and IsThere tell null from
// nothing.
type Difference struct {
	Path              Path
	Old, New          any
	WasThere, IsThere bool
}

// Differences lists the innermost places that differ among the matches of the path, in order: what people want to be
// told where [Set.Differ] says yes. Items of lists are compared by their place.
func (p Path) Differences(before, after map[string]any) []Difference {
	olds, news := p.Places(before), p.Places(after)
	var list []Difference
	for _, place := range olds {
		if n := slices.IndexFunc(news, func(other Place) bool { return other.Path.Equal(place.Path) }); n >= 0 {
			list = differences(list, place.Path.steps, place.Value, news[n].Value)
			news = slices.Delete(news, n, n+1)
		} else {
			list = differences(list, place.Path.steps, place.Value, absent{})
		}
	}
	for _, place := range news {
		list = differences(list, place.Path.steps, absent{}, place.Value)
	}
	return list
}

func differences(list []Difference, at []Step, before, after any) []Difference {
	if Equal(before, after) {
		return list
	}
	below := func(s Step, before, after any) {
		list = differences(list, append(at[:len(at):len(at)], s), before, after)
	}
	oldMembers, wasMap := before.(map[string]any)
	newMembers, isMap := after.(map[string]any)
	if wasMap && isMap {
		names := maps.Clone(oldMembers)
		maps.Copy(names, newMembers)
		for _, name := range slices.Sorted(maps.Keys(names)) {
			below(Step{Kind: Name, Name: name}, memberOf(oldMembers, name), memberOf(newMembers, name))
		}
		return list
	}
	oldItems, wasList := before.([]any)
	newItems, isList := after.([]any)
	if wasList && isList {
		for i := range max(len(oldItems), len(newItems)) {
			below(Step{Kind: Index, Index: i}, itemAt(oldItems, i), itemAt(newItems, i))
		}
		return list
	}
	d := Difference{Path: Path{steps: slices.Clone(at)}, WasThere: before != absent{}, IsThere: after != absent{}}
	if d.WasThere {
		d.Old = before
	}
	if d.IsThere {
		d.New = after
	}
	return append(list, d)
}

func memberOf(members map[string]any, name string) any {
	if value, ok := members[name]; ok {
		return value
	}
	return absent{}
}
