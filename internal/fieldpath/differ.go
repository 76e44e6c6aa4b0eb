package fieldpath

import (
	"math"
	"reflect"
)

// Differ reports whether any path has another match, another number of matches or other values in two versions of an
// object. Items of lists are compared by their place.
func (s *Set) Differ(before, after map[string]any) bool {
	if s.root.leaf {
		return !Equal(before, after)
	}
	return differIn(before, after, s.start())
}

// differIn compares what is below two values; absent is for one that is not there.
func differIn(before, after any, nodes []*node) bool {
	oldMembers, _ := before.(map[string]any)
	newMembers, _ := after.(map[string]any)
	for name, member := range oldMembers {
		other, ok := newMembers[name]
		if !ok {
			other = absent{}
		}
		if differAt(member, other, nodes, name) {
			return true
		}
	}
	for name, member := range newMembers {
		if _, ok := oldMembers[name]; !ok && differAt(absent{}, member, nodes, name) {
			return true
		}
	}
	oldItems, _ := before.([]any)
	newItems, _ := after.([]any)
	for i := range max(len(oldItems), len(newItems)) {
		if differAtItem(itemAt(oldItems, i), itemAt(newItems, i), nodes, i) {
			return true
		}
	}
	return false
}

// absent stands for what is not there, which differs from null.
type absent struct{}

func itemAt(items []any, i int) any {
	if i < len(items) {
		return items[i]
	}
	return absent{}
}

func differAt(before, after any, nodes []*node, name string) bool {
	next, leaf := member(nodes, name)
	return leaf && !Equal(before, after) || !leaf && len(next) > 0 && differIn(before, after, next)
}

func differAtItem(before, after any, nodes []*node, i int) bool {
	next, leaf := item(nodes, i)
	return leaf && !Equal(before, after) || !leaf && len(next) > 0 && differIn(before, after, next)
}

// Equal reports whether two decoded values are the same; numbers are if their values are.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for name, member := range a {
			if other, ok := b[name]; !ok || !Equal(member, other) {
				return false
			}
		}
		return true
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i, item := range a {
			if !Equal(item, b[i]) {
				return false
			}
		}
		return true
	case int64:
		switch b := b.(type) {
		case int64:
			return a == b
		case float64:
			return equalNumber(a, b)
		}
		return false
	case float64:
		switch b := b.(type) {
		case int64:
			return equalNumber(b, a)
		case float64:
			return a == b
		}
		return false
	default:
		return reflect.DeepEqual(a, b)
	}
}

func equalNumber(i int64, f float64) bool {
	return f >= math.MinInt64 && f < math.MaxInt64 && f == math.Trunc(f) && int64(f) == i
}
