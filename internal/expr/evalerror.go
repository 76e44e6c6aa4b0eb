package expr

import (
	"errors"
	"fmt"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// EvalError says that an expression has no result for an object. It is made of the expression's text alone, and holds
// nothing of the object.
type EvalError struct {
	// Offset, Line and Column are the place in the text, as in a [Fault].
	Offset, Line, Column int
	Reason               string
}

// Error is the reason and the place.
func (e *EvalError) Error() string {
	return fmt.Sprintf("expression, at %d:%d: %s", e.Line, e.Column, e.Reason)
}

func (s *source) evalError(offset int, reason string) *EvalError {
	line, column := s.place(offset)
	return &EvalError{offset, line, column, reason}
}

// explain makes an EvalError of what cel-go says. The messages of cel-go quote values ("no such key: …", "invalid RFC
// 3339 timestamp …"), so they are not passed on: the reason is told from the node that failed. Only messages that are known
// word by word, and therefore hold no value, are told apart.
func (p *Program) explain(err error) error {
	if tooExpensive(err) {
		return p.source.evalError(0, tooMuch())
	}
	var failed *types.Err
	if !errors.As(err, &failed) {
		return p.source.evalError(0, "it cannot be evaluated")
	}
	node := p.node(failed.NodeID())
	offset, ok := p.source.of(p.ast, failed.NodeID())
	if node == nil || !ok {
		return p.source.evalError(0, "a function or operator does not take a value of this type")
	}
	if missing := missingField(node, failed); missing != nil {
		return p.source.evalError(p.source.step(p.ast, missing, 0), fmt.Sprintf("there is no field %q%s", missing.AsSelect().FieldName(), absentHint(missing)))
	}
	if node.Kind() == ast.CallKind {
		offset = p.source.function(offset, node.AsCall().FunctionName())
	}
	return p.source.evalError(offset, reasonOf(node, failed))
}

// tooExpensive reports whether an evaluation reached the cost limit.
func tooExpensive(err error) bool {
	var cancelled interpreter.EvalCancelledError
	return errors.As(err, &cancelled)
}

func tooMuch() string { return fmt.Sprintf("it costs too much: more than %d steps", costLimit) }

// missingField is the selection whose field the object does not have, or nil. cel-go names the outermost of a chain of
// them; which one it is, is told by the key in the message, if that is a name in the expression.
func missingField(node ast.Expr, failed *types.Err) ast.Expr {
	var missing ast.Expr
	ast.PostOrderVisit(node, ast.NewExprVisitor(func(e ast.Expr) {
		if missing == nil && e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() && says(failed, "no such key: "+e.AsSelect().FieldName()) {
			missing = e
		}
	}))
	return missing
}

// says reports whether a message is exactly this one: (*types.Err).Is compares texts.
func says(failed *types.Err, text string) bool { return errors.Is(failed, errors.New(text)) }

// absentHint tells how to ask for a field that may be absent, if the text can be given.
func absentHint(node ast.Expr) string {
	text := node.AsSelect().FieldName()
	for inner := node.AsSelect().Operand(); ; inner = inner.AsSelect().Operand() {
		switch inner.Kind() {
		case ast.IdentKind:
			return fmt.Sprintf("; ask with has(%s.%s) first", inner.AsIdent(), text)
		case ast.SelectKind:
			text = inner.AsSelect().FieldName() + "." + text
		default:
			return ""
		}
	}
}

func reasonOf(node ast.Expr, failed *types.Err) string {
	if node.Kind() != ast.CallKind {
		return "there is no such field, key or index"
	}
	function := node.AsCall().FunctionName()
	for _, known := range []string{
		"division by zero", "modulus by zero", "integer overflow", "unsigned integer overflow", "duration overflow", "timestamp overflow",
		errEmptyList.Error(), errOffset.Error(), errNotQuantity.Error(), errNotWhole.Error(),
	} {
		if says(failed, known) {
			return known
		}
	}
	switch function {
	case operators.Index, operators.OptIndex:
		return "there is no such key or index"
	case operators.LogicalAnd, operators.LogicalOr, operators.LogicalNot, operators.Conditional:
		return fmt.Sprintf("%s needs true or false", symbol(function))
	}
	if symbol(function) != function {
		return fmt.Sprintf("%s does not take values of these types", symbol(function))
	}
	// What the macros math.greatest and math.least become.
	function = strings.NewReplacer("@max", "greatest", "@min", "least").Replace(function)
	return fmt.Sprintf("%s() has no result for this value", function)
}

// node finds a node of the expression by its id.
func (p *Program) node(id int64) ast.Expr {
	var found ast.Expr
	ast.PreOrderVisit(p.ast.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.ID() == id {
			found = e
		}
	}))
	return found
}

// symbol is how an operator is written; other functions have their name.
func symbol(function string) string {
	switch function {
	case operators.Conditional:
		return "? :"
	case operators.Index, operators.OptIndex:
		return "[ ]"
	case operators.OptSelect:
		return ".?"
	case operators.In, operators.OldIn:
		return "in"
	case operators.LogicalNot:
		return "!"
	case operators.Negate:
		return "-"
	}
	if written, ok := operators.FindReverseBinaryOperator(function); ok {
		return written
	}
	return function
}
