package fieldpath

import "math"

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
		if b, ok := b.(float64); ok {
			return equalNumber(a, b)
		}
	case float64:
		if b, ok := b.(int64); ok {
			return equalNumber(b, a)
		}
	}
	return a == b
}

func equalNumber(i int64, f float64) bool {
	return f >= math.MinInt64 && f < math.MaxInt64 && f == math.Trunc(f) && int64(f) == i
}
