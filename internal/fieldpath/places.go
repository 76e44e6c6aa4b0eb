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
	p.visit(object, func(at place) {
		places = append(places, Place{Path{steps: slices.Clone(at.steps)}, at.value()})
	})
	return places
}

// Difference is a place whose value differs between two versions of an object. WasThere and IsThere distinguish null
// from nothing.
type Difference struct {
	Path              Path
	Old, New          any
	WasThere, IsThere bool
}

// Differences lists the innermost places that differ among the matches of the path, in order: for people who want to
// see why [Set.DifferJSON] returned true. Items of lists are compared by their place.
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

// absent stands for what is not there, which differs from null.
type absent struct{}

func memberOf(members map[string]any, name string) any {
	if value, ok := members[name]; ok {
		return value
	}
	return absent{}
}

func itemAt(items []any, i int) any {
	if i < len(items) {
		return items[i]
	}
	return absent{}
}
