package expr

import (
	"math"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// valueSet holds values; what can be a key of a map is found without comparing it with each of them.
type valueSet struct {
	keys map[any]struct{}
	rest []ref.Val
}

func (m *meter) set(l traits.Lister) *valueSet {
	set := &valueSet{keys: map[any]struct{}{}}
	for i := range length(l) {
		set.add(m, l.Get(i))
	}
	return set
}

func (s *valueSet) add(m *meter, v ref.Val) {
	key, ok := setKey(v)
	m.step(setSteps(v))
	if ok {
		s.keys[key] = struct{}{}
	} else {
		s.rest = append(s.rest, v)
	}
}

func (s *valueSet) has(m *meter, v ref.Val) bool {
	m.step(setSteps(v))
	if key, ok := setKey(v); ok {
		_, found := s.keys[key]
		return found
	}
	for _, other := range s.rest {
		if m.equal(other, v) {
			return true
		}
	}
	return false
}

// setSteps is what making a key takes: measured, a few comparisons.
func setSteps(v ref.Val) int {
	if text, ok := v.(types.String); ok {
		return 3 + len(text)/100
	}
	return 3
}

// maxExact is the whole number up to which each has a double of its own. Beyond it CEL's == is not transitive.
const maxExact = 1 << 53

// setKey returns the same key for two values exactly if they are equal: 1, 1u and 1.0 are. A value that has no key equals
// none that has.
func setKey(v ref.Val) (key any, ok bool) {
	switch v := v.(type) {
	case types.String, types.Bool, types.Null:
		return v, true
	case types.Int:
		return int64(v), v > -maxExact && v < maxExact
	case types.Uint:
		return int64(v & math.MaxInt64), v < maxExact
	case types.Double:
		f := float64(v)
		switch {
		case f != f || f <= -maxExact || f >= maxExact:
			return nil, false
		case f == math.Trunc(f):
			return int64(f), true
		default:
			return f, true
		}
	default:
		return nil, false
	}
}
