package expr

import (
	"fmt"
	"math/bits"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/functions"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// cel-go charges a call after it ran. It charges one step if it has no cost model for the overload. It does the same if it cannot resolve
// the overload, since most of an object is dyn. That is too late, and too little. With cel-go's own limit of a million steps and an object of
// 170 KB, text.replace("a", text) allocated 2.4 GB, and a regular expression from the object took more than 15 s.
//
// So calls have a cost by what they go through (costs). The calls whose cost or result may be far larger than their arguments have a price.
// They do not run if it alone is over the limit (guard).

// costs implements [cost.ActualCostEstimator] for the calls that cel-go has no model of, or one that only counts the items of a list, and not
// what is in them.
type costs struct {
	models map[string]cost.FunctionTracker
}

func newCosts() costs { return costs{cost.StandardOverloadTrackers()} }

// CallCost implements [cost.ActualCostEstimator].
func (c costs) CallCost(function, overload string, args []ref.Val, _ ref.Val) *uint64 {
	var steps uint64
	switch price := priceOf(function); {
	case price != nil:
		steps = uint64(price(args))
	case c.models[overload] != nil:
		return nil
	default:
		steps = uint64(1 + sizePrice(function, args))
	}
	return &steps
}

func sizePrice(function string, args []ref.Val) int {
	switch function {
	case operators.Index, operators.OptIndex, operators.OptSelect, overloads.TypeConvertType, overloads.TypeConvertDyn,
		"cel.@mapInsert", "quantity", "isQuantity": // which refuse a long text
		return 0
	case overloads.Size, operators.Add:
		if isContainer(args[0]) {
			return 0 // lists are joined without a copy
		}
	}
	total := 0
	for _, arg := range args {
		total += size(arg)
	}
	return total
}

// guard makes calls that have a price run only if it is not over the limit. cel-go charges the price in either case, and so stops the
// evaluation if it is.
func guard(env *cel.Env, limit int) interpreter.InterpretableDecoratorV2 {
	return func(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := node.(interpreter.InterpretableCall)
		if !ok || priceOf(call.Function()) == nil {
			return node, nil
		}
		price := priceOf(call.Function())
		run, err := implementation(env, call.Function(), len(call.Args()))
		if err != nil {
			return nil, err
		}
		// Without the name of an overload, CallCost has the price.
		return interpreter.NewCall(call.ID(), call.Function(), "", call.Args(), func(args ...ref.Val) ref.Val {
			if price(args) > limit {
				return types.NewErr("too expensive")
			}
			return run(args...)
		}), nil
	}
}

// implementation returns what cel-go runs for a call with so many arguments.
func implementation(env *cel.Env, function string, args int) (functions.FunctionOp, error) {
	switch function { // which have no binding
	case operators.Equals:
		return func(args ...ref.Val) ref.Val { return types.Equal(args[0], args[1]) }, nil
	case operators.NotEquals:
		return func(args ...ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) }, nil
	}
	bindings, err := env.Functions()[function].Bindings()
	if err != nil {
		return nil, err
	}
	for _, b := range bindings {
		switch {
		case b.Operator != function:
		case args == 1 && b.Unary != nil:
			return func(args ...ref.Val) ref.Val { return b.Unary(args[0]) }, nil
		case args == 2 && b.Binary != nil:
			return func(args ...ref.Val) ref.Val { return b.Binary(args[0], args[1]) }, nil
		case b.Function != nil:
			return b.Function, nil
		}
	}
	return nil, fmt.Errorf("the function %s has no implementation", function)
}

// priceOf returns what computes the steps that calls of a function take, or nil for a function that has no price.
func priceOf(function string) func(args []ref.Val) int {
	switch function {
	case operators.Equals, operators.NotEquals: // a list may hold one list many times
		return equalPrice
	case operators.In, operators.OldIn:
		return func(args []ref.Val) int { return searchPrice(args[1], args[0]) }
	case "indexOf", "lastIndexOf":
		return func(args []ref.Val) int { return searchPrice(args[0], args[1]) }
	case "sets.contains", "sets.equivalent", "sets.intersects", "hasAll", "hasAny", "hasOnly", "hasExactly", "distinct": // each item with each
		return func(args []ref.Val) int { return deepSize(args[0], comparedBytes) * (1 + size(args[len(args)-1])) }
	case "sort", "@sortByAssociatedKeys":
		return func(args []ref.Val) int { return passPrice(args) * bits.Len(uint(1+size(args[0]))) }
	case "min", "max", "isSorted", "sum", "flatten", "format":
		return passPrice
	case "join":
		return joinPrice
	case "replace":
		return replacePrice
	case overloads.Matches, "find", "findAll":
		return regexPrice
	default:
		return nil
	}
}

// The bytes of text that one step pays for. A comparison of texts is ten times as fast as what looks at each character.
const (
	textBytes     = 10
	comparedBytes = 100
)

// equalPrice is for == and !=, which go through two lists or maps only if these are of one size.
func equalPrice(args []ref.Val) int {
	if isContainer(args[0]) && (!isContainer(args[1]) || size(args[0]) != size(args[1])) {
		return 1
	}
	return deepSize(args[0], comparedBytes)
}

// searchPrice is for a value in a list, a key in a map, or a text in another one, which cel-go compares at every place.
func searchPrice(in, v ref.Val) int {
	switch in.(type) {
	case traits.Lister:
		return deepSize(in, comparedBytes)
	case traits.Mapper:
		return 1
	default:
		return (1 + size(in)) * (1 + size(v))
	}
}

// passPrice is for functions that go through all that is in their arguments.
func passPrice(args []ref.Val) int {
	total := 0
	for _, arg := range args {
		total += deepSize(arg, textBytes)
	}
	return total
}

func joinPrice(args []ref.Val) int {
	if len(args) == 1 {
		return passPrice(args)
	}
	return deepSize(args[0], textBytes) + size(args[0])*size(args[1])
}

// replacePrice is the length of the longest text that replace may return.
func replacePrice(args []ref.Val) int {
	text, found, with := bytesOf(args[0]), bytesOf(args[1]), bytesOf(args[2])
	return 1 + (text+(1+text/max(1, found))*with)/textBytes
}

// regexPrice is measured: 37 ns for each byte that a simple expression goes through.
func regexPrice(args []ref.Val) int {
	return 1 + 5*size(args[0])*(1+size(args[1])/2)
}

func bytesOf(v ref.Val) int {
	text, _ := v.(types.String)
	return len(text)
}

func isContainer(v ref.Val) bool {
	switch v.(type) {
	case traits.Lister, traits.Mapper:
		return true
	default:
		return false
	}
}

// size is what one pass through a value takes: a step for each item of a list or map, or for each textBytes of a text. It
// is at most the limit, so that a product of two sizes does not overflow.
func size(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return min(len(v)/textBytes, costLimit)
	case types.Bytes:
		return min(len(v)/textBytes, costLimit)
	case traits.Sizer:
		n, _ := v.Size().(types.Int)
		return int(min(n, costLimit))
	default:
		return 0
	}
}

// deepSize counts v and all values in it, and a step more for each bytesPerStep of a text. It stops at the limit, because a
// list may hold one list many times, and that list another one.
func deepSize(v ref.Val, bytesPerStep int) int {
	total := 0
	var add func(v ref.Val)
	add = func(v ref.Val) {
		total++
		switch v := v.(type) {
		case types.String:
			total += len(v) / bytesPerStep
		case types.Bytes:
			total += len(v) / bytesPerStep
		case traits.Lister:
			for i := types.Int(0); i < length(v) && total <= costLimit; i++ {
				add(v.Get(i))
			}
		case traits.Mapper:
			for it := v.Iterator(); total <= costLimit && it.HasNext() == types.True; {
				key := it.Next()
				item, _ := v.Find(key)
				add(key)
				add(item)
			}
		case *types.Optional:
			if v.HasValue() {
				add(v.GetValue())
			}
		}
	}
	add(v)
	return min(total, costLimit+1)
}
