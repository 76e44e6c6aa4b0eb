package expr

import (
	"errors"
	"fmt"
	"reflect"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"
)

// quantity is an amount as Kubernetes writes it, 500m or 1Gi, as a value of expressions.
type quantity struct{ resource.Quantity }

var (
	_ ref.Val = quantity{}

	quantityType = cel.OpaqueType("kubernetes.Quantity")

	errNotWhole    = errors.New("not a whole number that fits 64 bits")
	errNotQuantity = errors.New("not a quantity")
)

// ConvertToNative implements [ref.Val].
func (q quantity) ConvertToNative(t reflect.Type) (any, error) {
	if t.Kind() == reflect.String {
		return q.String(), nil
	}
	return nil, fmt.Errorf("a quantity cannot become a %v", t)
}

// ConvertToType implements [ref.Val].
func (q quantity) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case quantityType:
		return q
	case types.TypeType:
		return quantityType
	case types.StringType:
		return types.String(q.String())
	default:
		return types.NewErr("type conversion error from '%s' to '%s'", quantityType, t)
	}
}

// Equal implements [ref.Val]: 1000m equals 1.
func (q quantity) Equal(other ref.Val) ref.Val {
	o, ok := other.(quantity)
	return types.Bool(ok && q.Cmp(o.Quantity) == 0)
}

// Type implements [ref.Val].
func (q quantity) Type() ref.Type { return quantityType }

// Value implements [ref.Val].
func (q quantity) Value() any { return q.Quantity }

// quantityFunctions are the functions of Kubernetes' quantity library (apiserver/pkg/cel/library/quantity.go), and string().
func quantityFunctions() []cel.EnvOption {
	one := []*cel.Type{quantityType}
	two := []*cel.Type{quantityType, quantityType}
	withInt := []*cel.Type{quantityType, cel.IntType}
	compare := func(id string, result *cel.Type, of func(int) ref.Val) cel.FunctionOpt {
		return cel.MemberOverload(id, two, result, onQuantities(func(a, b quantity) ref.Val { return of(a.Cmp(b.Quantity)) }))
	}
	add := func(a, b quantity) ref.Val { a.Quantity = a.DeepCopy(); a.Add(b.Quantity); return a }
	sub := func(a, b quantity) ref.Val { a.Quantity = a.DeepCopy(); a.Sub(b.Quantity); return a }
	return []cel.EnvOption{
		cel.Types(quantityType),
		cel.Function("quantity", cel.Overload("string_to_quantity", []*cel.Type{cel.StringType}, quantityType,
			cel.UnaryBinding(toQuantity))),
		cel.Function("isQuantity", cel.Overload("is_quantity_string", []*cel.Type{cel.StringType}, cel.BoolType,
			cel.UnaryBinding(func(text ref.Val) ref.Val { return types.Bool(!types.IsError(toQuantity(text))) }))),
		cel.Function("string", cel.Overload("quantity_to_string", one, cel.StringType,
			onQuantity(func(q quantity) ref.Val { return types.String(q.String()) }))),
		cel.Function("sign", cel.MemberOverload("quantity_sign", one, cel.IntType,
			onQuantity(func(q quantity) ref.Val { return types.Int(q.Sign()) }))),
		cel.Function("isInteger", cel.MemberOverload("quantity_is_integer", one, cel.BoolType,
			onQuantity(func(q quantity) ref.Val { _, ok := q.AsInt64(); return types.Bool(ok) }))),
		cel.Function("asInteger", cel.MemberOverload("quantity_get_int", one, cel.IntType,
			onQuantity(func(q quantity) ref.Val {
				if n, ok := q.AsInt64(); ok {
					return types.Int(n)
				}
				return types.WrapErr(errNotWhole)
			}))),
		cel.Function("asApproximateFloat", cel.MemberOverload("quantity_get_float", one, cel.DoubleType,
			onQuantity(func(q quantity) ref.Val { return types.Double(q.AsApproximateFloat64()) }))),
		cel.Function("isGreaterThan", compare("quantity_is_greater_than", cel.BoolType, func(c int) ref.Val { return types.Bool(c > 0) })),
		cel.Function("isLessThan", compare("quantity_is_less_than", cel.BoolType, func(c int) ref.Val { return types.Bool(c < 0) })),
		cel.Function("compareTo", compare("quantity_compare_to", cel.IntType, func(c int) ref.Val { return types.Int(c) })),
		cel.Function("add",
			cel.MemberOverload("quantity_add", two, quantityType, onQuantities(add)),
			cel.MemberOverload("quantity_add_int", withInt, quantityType, onQuantities(add))),
		cel.Function("sub",
			cel.MemberOverload("quantity_sub", two, quantityType, onQuantities(sub)),
			cel.MemberOverload("quantity_sub_int", withInt, quantityType, onQuantities(sub))),
	}
}

func onQuantity(f func(quantity) ref.Val) cel.OverloadOpt {
	return cel.UnaryBinding(func(v ref.Val) ref.Val { return f(v.(quantity)) })
}

// onQuantities is for two quantities, or a quantity and a whole number.
func onQuantities(f func(a, b quantity) ref.Val) cel.OverloadOpt {
	return cel.BinaryBinding(func(a, b ref.Val) ref.Val {
		if n, ok := b.(types.Int); ok {
			b = quantity{*resource.NewQuantity(int64(n), resource.DecimalExponent)}
		}
		return f(a.(quantity), b.(quantity))
	})
}

// maxQuantity is far above what a quantity needs; parsing takes time that grows with the square of the length.
const maxQuantity = 256

// toQuantity returns a quantity, or an error that does not hold the text.
func toQuantity(text ref.Val) ref.Val {
	s, ok := text.(types.String)
	if !ok || len(s) > maxQuantity {
		return types.WrapErr(errNotQuantity)
	}
	q, err := resource.ParseQuantity(string(s))
	if err != nil {
		return types.WrapErr(errNotQuantity)
	}
	return quantity{q}
}
