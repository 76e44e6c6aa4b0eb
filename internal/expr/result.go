package expr

import (
	"encoding/base64"
	"math"
	"time"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/ext"
)

// maxDepth of a result; no object is nested as deeply.
const maxDepth = 100

// plain copies a result into what can be put into an object; see [copier.copy].
func plain(v ref.Val) (value any, reason string) {
	c := copier{}
	return c.copy(v, maxDepth)
}

// copier counts what it copies: a list may hold one list many times, and that one another.
type copier struct{ copied int }

// copy copies a result into what encoding/json would make of JSON, but for whole numbers, which are int64. Where JSON has
// no such thing it follows CEL's own mapping: times and durations are text, bytes are base64. The reason, if not empty,
// is what JSON cannot hold.
func (c *copier) copy(v ref.Val, depth int) (value any, reason string) {
	c.copied++
	if c.copied > costLimit {
		return nil, overLimit()
	}
	if depth == 0 {
		return nil, "the result is nested too deeply"
	}
	switch v := v.(type) {
	case types.Null:
		return nil, ""
	case types.Bool:
		return bool(v), ""
	case types.Int:
		return int64(v), ""
	case types.Uint:
		if v > math.MaxInt64 {
			return nil, "the result holds a number beyond 64 bits with a sign"
		}
		return int64(v), ""
	case types.Double:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, "the result holds a number that is infinite or none, which JSON has no form for"
		}
		return float64(v), ""
	case types.String:
		return string(v), ""
	case types.Bytes:
		return base64.StdEncoding.EncodeToString(v), ""
	case types.Timestamp:
		return v.UTC().Format(time.RFC3339Nano), ""
	case types.Duration, quantity, ext.IP, ext.CIDR:
		text, ok := v.ConvertToType(types.StringType).(types.String)
		if !ok {
			return nil, "the result cannot be written as text"
		}
		return string(text), ""
	case traits.Lister:
		return c.list(v, depth)
	case traits.Mapper:
		return c.mapping(v, depth)
	case *types.Optional:
		return nil, "the result is an optional value; end it with .orValue(…)"
	default:
		return nil, "the result is something that JSON has no form for"
	}
}

func (c *copier) list(list traits.Lister, depth int) (any, string) {
	values := make([]any, 0, length(list))
	for it := list.Iterator(); it.HasNext() == types.True; {
		value, reason := c.copy(it.Next(), depth-1)
		if reason != "" {
			return nil, reason
		}
		values = append(values, value)
	}
	return values, ""
}

func (c *copier) mapping(m traits.Mapper, depth int) (any, string) {
	values := map[string]any{}
	for it := m.Iterator(); it.HasNext() == types.True; {
		key := it.Next()
		name, ok := key.(types.String)
		if !ok {
			return nil, "the result holds a map whose keys are not text"
		}
		value, reason := c.copy(m.Get(key), depth-1)
		if reason != "" {
			return nil, reason
		}
		values[string(name)] = value
	}
	return values, ""
}
