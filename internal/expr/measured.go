package expr

import (
	"strings"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"
)

// measuredCall is a call of which one could go through, or make, more than memory holds: a list may hold one list many
// times, and that one another. It pays before it runs, for which its arguments are evaluated twice.
type measuredCall struct {
	interpreter.InterpretableCall
	args    []interpreter.InterpretableV2
	measure func(m *meter, args []ref.Val)
}

// measureOf is what pays for a function, nil if that can be done behind it.
func measureOf(function string) func(m *meter, args []ref.Val) {
	switch function {
	case "format", "flatten":
		return func(m *meter, args []ref.Val) {
			for _, arg := range args {
				m.whole(arg)
			}
		}
	case "replace":
		return measureReplace
	case "join":
		return measureJoin
	default:
		return nil
	}
}

// measureReplace pays for the text that is made, which is as long as two texts of an object multiplied.
func measureReplace(m *meter, args []ref.Val) {
	var texts [3]string
	for i := range texts {
		if i < len(args) {
			text, _ := args[i].(types.String)
			texts[i] = string(text)
		}
	}
	times := strings.Count(texts[0], texts[1])
	if len(args) == 4 {
		if most, ok := args[3].(types.Int); ok && most >= 0 {
			times = int(min(most, types.Int(times)))
		}
	}
	m.step((len(texts[0]) + times*len(texts[2])) / 10)
}

func measureJoin(m *meter, args []ref.Val) {
	l, ok := args[0].(traits.Lister)
	if !ok {
		return
	}
	between := 1
	if len(args) == 2 {
		between += int(size(args[1]))
	}
	for i := range length(l) {
		m.step(between + int(size(l.Get(i))))
	}
}

// Exec implements [interpreter.InterpretableV2].
func (c *measuredCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	m := meter{frame: frame}
	values := make([]ref.Val, len(c.args))
	for i, arg := range c.args {
		values[i] = arg.Exec(frame)
	}
	c.measure(&m, values)
	m.pay()
	return c.InterpretableCall.Exec(frame)
}

// Eval implements [interpreter.Interpretable].
func (c *measuredCall) Eval(vars interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(vars, c.Exec)
}
