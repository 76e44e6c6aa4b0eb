package expr

import (
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// metered replaces the calls that compare many values by ones that stop at the cost limit, not behind it.
func metered(node interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
	call, ok := node.(interpreter.InterpretableCall)
	if !ok {
		return node, nil
	}
	if measure := measureOf(call.Function()); measure != nil {
		return &measuredCall{call, call.Args(), measure}, nil
	}
	run := meteredFunction(call.Function(), len(call.Args()))
	if run == nil {
		return node, nil
	}
	slow := &meteredCall{call, call.Args(), run}
	switch call.Function() {
	case operators.Equals:
		return &pairCall{slow, equalScalars}, nil
	case operators.NotEquals:
		return &pairCall{slow, differentScalars}, nil
	case operators.In, operators.OldIn:
		return &pairCall{slow, isKey}, nil
	}
	return slow, nil
}

// meteredRun is the function of a [meteredCall]; nil is for values that it does not take.
type meteredRun func(m *meter, args []ref.Val) ref.Val

func meteredFunction(function string, args int) meteredRun {
	if args == 1 {
		switch function {
		case "distinct":
			return onList(distinct)
		case "isSorted":
			return onList((*meter).isSorted)
		case "min":
			return onList((*meter).smallest)
		case "max":
			return onList((*meter).largest)
		}
		return nil
	}
	switch function {
	case "indexOf":
		return indexOf
	case "lastIndexOf":
		return lastIndexOf
	case operators.Equals:
		return equals
	case operators.NotEquals:
		return notEquals
	case operators.In, operators.OldIn:
		return contains
	case "sets.contains", "hasAll":
		return onLists(func(m *meter, a, b traits.Lister) bool { return m.containsAll(a, b) })
	case "hasOnly":
		return onLists(func(m *meter, a, b traits.Lister) bool { return m.containsAll(b, a) })
	case "sets.equivalent", "hasExactly":
		return onLists(func(m *meter, a, b traits.Lister) bool { return m.containsAll(a, b) && m.containsAll(b, a) })
	case "sets.intersects", "hasAny":
		return onLists((*meter).intersects)
	default:
		return nil
	}
}

// meteredCall is a call that pays while it runs.
type meteredCall struct {
	interpreter.InterpretableCall
	args []interpreter.InterpretableV2
	run  meteredRun
}

// Exec implements [interpreter.InterpretableV2].
func (c *meteredCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	var values [3]ref.Val
	for i, arg := range c.args {
		values[i] = arg.Exec(frame)
		if types.IsError(values[i]) {
			return values[i]
		}
	}
	return c.call(frame, values[:len(c.args)])
}

func (c *meteredCall) call(frame *interpreter.ExecutionFrame, values []ref.Val) ref.Val {
	var unknown *types.Unknown
	for _, v := range values {
		if v, ok := v.(*types.Unknown); ok {
			unknown = types.MergeUnknowns(unknown, v)
		}
	}
	if unknown != nil {
		return unknown
	}
	m := meter{frame: frame}
	result := c.run(&m, values)
	if result == nil {
		result = types.NewErrWithNodeID(c.ID(), "no such overload: %s", c.Function())
	}
	m.step(1)
	m.pay()
	return types.LabelErrNode(c.ID(), result)
}

// Eval implements [interpreter.Interpretable].
func (c *meteredCall) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}

// pairCall is a meteredCall with an answer for what most calls are about, single values, which costs what it always did.
type pairCall struct {
	*meteredCall
	quick func(a, b ref.Val) ref.Val // nil if the values are others
}

// Exec implements [interpreter.InterpretableV2].
func (c *pairCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	a := c.args[0].Exec(frame)
	if types.IsError(a) {
		return a
	}
	b := c.args[1].Exec(frame)
	if types.IsError(b) {
		return b
	}
	result := c.quick(a, b)
	if result == nil {
		return c.call(frame, []ref.Val{a, b})
	}
	if costs := frame.CostTracker(); costs != nil {
		costs.EvalBinary(frame, c.ID(), c, a, b, result)
	}
	return result
}

// Eval implements [interpreter.Interpretable].
func (c *pairCall) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}

func equalScalars(a, b ref.Val) ref.Val {
	switch a.(type) {
	case types.String, types.Bool, types.Int, types.Double, types.Null:
	default:
		return nil
	}
	if _, unknown := b.(*types.Unknown); unknown {
		return nil
	}
	return types.Equal(a, b)
}

func differentScalars(a, b ref.Val) ref.Val {
	if equal := equalScalars(a, b); equal != nil {
		return types.Bool(equal != types.True)
	}
	return nil
}

func isKey(a, b ref.Val) ref.Val {
	m, ok := b.(traits.Mapper)
	if _, unknown := a.(*types.Unknown); unknown || !ok {
		return nil
	}
	return m.Contains(a)
}

func equals(m *meter, args []ref.Val) ref.Val { return types.Bool(m.equal(args[0], args[1])) }

func notEquals(m *meter, args []ref.Val) ref.Val { return types.Bool(!m.equal(args[0], args[1])) }

// contains is the operator in.
func contains(m *meter, args []ref.Val) ref.Val {
	switch in := args[1].(type) {
	case traits.Lister:
		return types.Bool(m.index(in, args[0]) >= 0)
	case traits.Container:
		return in.Contains(args[0])
	default:
		return nil
	}
}

// index is where v is in a list, -1 if it is not.
func (m *meter) index(l traits.Lister, v ref.Val) types.Int {
	for i := range length(l) {
		if m.equal(l.Get(i), v) {
			return i
		}
	}
	return types.IntNegOne
}

// lastIndex is where v is in a list for the last time, -1 if it is not.
func (m *meter) lastIndex(l traits.Lister, v ref.Val) types.Int {
	for i := length(l) - 1; i >= 0; i-- {
		if m.equal(l.Get(i), v) {
			return i
		}
	}
	return types.IntNegOne
}

func indexOf(m *meter, args []ref.Val) ref.Val {
	if l, ok := args[0].(traits.Lister); ok && len(args) == 2 {
		return m.index(l, args[1])
	}
	return m.textIndex(args, false)
}

func lastIndexOf(m *meter, args []ref.Val) ref.Val {
	if l, ok := args[0].(traits.Lister); ok && len(args) == 2 {
		return m.lastIndex(l, args[1])
	}
	return m.textIndex(args, true)
}

func onList(f func(m *meter, l traits.Lister) ref.Val) meteredRun {
	return func(m *meter, args []ref.Val) ref.Val {
		if l, ok := args[0].(traits.Lister); ok {
			return f(m, l)
		}
		return nil
	}
}

func onLists(f func(m *meter, a, b traits.Lister) bool) meteredRun {
	return func(m *meter, args []ref.Val) ref.Val {
		a, ok := args[0].(traits.Lister)
		b, also := args[1].(traits.Lister)
		if !ok || !also {
			return nil
		}
		return types.Bool(f(m, a, b))
	}
}

// containsAll reports whether each item of sub is in l.
func (m *meter) containsAll(l, sub traits.Lister) bool {
	set := m.set(l)
	for i := range length(sub) {
		if !set.has(m, sub.Get(i)) {
			return false
		}
	}
	return true
}

func (m *meter) intersects(a, b traits.Lister) bool {
	set := m.set(b)
	for i := range length(a) {
		if set.has(m, a.Get(i)) {
			return true
		}
	}
	return false
}

func distinct(m *meter, l traits.Lister) ref.Val {
	set := valueSet{keys: map[any]struct{}{}}
	var items []ref.Val
	for i := range length(l) {
		if v := l.Get(i); !set.has(m, v) {
			set.add(m, v)
			items = append(items, v)
		}
	}
	return types.NewRefValList(types.DefaultTypeAdapter, items)
}
