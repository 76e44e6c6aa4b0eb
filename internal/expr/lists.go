package expr

import (
	"errors"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

var errEmptyList = errors.New("the list is empty")

// listFunctions are the functions of Kubernetes' lists library (apiserver/pkg/cel/library/lists.go) that cel-go's own
// does not have: isSorted, sum, min, max, indexOf, lastIndexOf.
func listFunctions() []cel.EnvOption {
	item := cel.TypeParamType("T")
	list := []*cel.Type{cel.ListType(item)}
	find := []*cel.Type{cel.ListType(item), item}
	return []cel.EnvOption{
		cel.Function("isSorted", cel.MemberOverload("list_is_sorted", list, cel.BoolType, onList(isSorted))),
		cel.Function("sum", cel.MemberOverload("list_sum", list, item, onList(sum))),
		cel.Function("min", cel.MemberOverload("list_min", list, item, onList(extreme(types.IntNegOne)))),
		cel.Function("max", cel.MemberOverload("list_max", list, item, onList(extreme(types.IntOne)))),
		cel.Function("indexOf", cel.MemberOverload("list_index_of", find, cel.IntType, onListItem(index))),
		cel.Function("lastIndexOf", cel.MemberOverload("list_last_index_of", find, cel.IntType, onListItem(lastIndex))),
	}
}

// onList and onListItem bind functions of lists. A binding is called with the types of its overload only.
func onList(f func(traits.Lister) ref.Val) cel.OverloadOpt {
	return cel.UnaryBinding(func(v ref.Val) ref.Val { return f(v.(traits.Lister)) })
}

func onListItem(f func(traits.Lister, ref.Val) types.Int) cel.OverloadOpt {
	return cel.BinaryBinding(func(v, item ref.Val) ref.Val { return f(v.(traits.Lister), item) })
}

func length(l traits.Lister) types.Int {
	n, _ := l.Size().(types.Int)
	return n
}

func isSorted(l traits.Lister) ref.Val {
	for i := types.Int(1); i < length(l); i++ {
		switch c := compare(l.Get(i-1), l.Get(i)); c {
		case types.IntOne:
			return types.False
		case types.IntZero, types.IntNegOne:
		default:
			return c
		}
	}
	return types.True
}

func sum(l traits.Lister) ref.Val {
	if length(l) == 0 {
		return types.IntZero
	}
	total := l.Get(types.IntZero)
	for i := types.Int(1); i < length(l); i++ {
		adder, ok := total.(traits.Adder)
		if _, text := total.(types.String); !ok || text {
			return types.MaybeNoSuchOverloadErr(total) // + joins texts and lists, but that is no sum
		}
		total = adder.Add(l.Get(i))
	}
	return total
}

// extreme returns a function for the largest item with 1, for the smallest with -1.
func extreme(wanted types.Int) func(traits.Lister) ref.Val {
	return func(l traits.Lister) ref.Val {
		if length(l) == 0 {
			return types.WrapErr(errEmptyList)
		}
		best := l.Get(types.IntZero)
		for i := types.Int(1); i < length(l); i++ {
			switch c := compare(l.Get(i), best); c {
			case wanted:
				best = l.Get(i)
			case types.IntZero, types.IntOne, types.IntNegOne:
			default:
				return c
			}
		}
		return best
	}
}

// compare returns -1, 0, 1 or an error.
func compare(a, b ref.Val) ref.Val {
	if comparer, ok := a.(traits.Comparer); ok {
		return comparer.Compare(b)
	}
	return types.MaybeNoSuchOverloadErr(a)
}

// index is where v is in a list, -1 if it is not.
func index(l traits.Lister, v ref.Val) types.Int { return search(l, v, 0, 1) }

// lastIndex is where v is in a list for the last time, -1 if it is not.
func lastIndex(l traits.Lister, v ref.Val) types.Int { return search(l, v, length(l)-1, -1) }

func search(l traits.Lister, v ref.Val, from, step types.Int) types.Int {
	for i := from; i >= 0 && i < length(l); i += step {
		if types.Equal(l.Get(i), v) == types.True {
			return i
		}
	}
	return types.IntNegOne
}
