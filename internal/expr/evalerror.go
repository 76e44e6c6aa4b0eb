package expr

import (
	"errors"
	"fmt"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// EvalError is the error of an expression that has no result for an object. It is made of the expression's text alone, and holds
// nothing of the object.
type EvalError struct{ Fault }

// Error is the reason and the place.
func (e *EvalError) Error() string {
	return "expression, at " + e.String()
}

func (s source) evalError(offset int, reason string) *EvalError {
	return &EvalError{s.fault(offset, "%s", reason)}
}

// explain makes an EvalError of cel-go's error. The messages of cel-go quote values ("no such key: …", "invalid RFC 3339
// timestamp …"), so none is passed on: the reason is made of the expression's own text.
func (p *Program) explain(err error) error {
	if tooExpensive(err) {
		return p.source.evalError(0, tooMuch())
	}
	var failed *types.Err
	if !errors.As(err, &failed) {
		return p.source.evalError(0, noResult)
	}
	if missing := p.missingField(failed); missing != nil {
		name := missing.AsSelect().FieldName()
		return p.source.evalError(p.source.named(p.ast, missing.ID(), name), fmt.Sprintf("there is no field %q%s", name, absentHint(missing)))
	}
	return p.source.evalError(p.source.of(p.ast, failed.NodeID()), noResult)
}

const noResult = "there is no result: a value is absent, or is not of the type or form that is needed here"

// tooExpensive reports whether an evaluation reached the cost limit.
func tooExpensive(err error) bool {
	var cancelled interpreter.EvalCancelledError
	return errors.As(err, &cancelled)
}

func tooMuch() string { return fmt.Sprintf("it costs too much: more than %d steps", costLimit) }

// missingField is the selection whose field the object does not have, or nil. cel-go names the outermost of a chain of
// selections; the missing one is that whose name is the key in the message.
func (p *Program) missingField(failed *types.Err) ast.Expr {
	var missing ast.Expr
	within := ast.NewExprVisitor(func(e ast.Expr) {
		if missing == nil && e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() &&
			errors.Is(failed, errors.New("no such key: "+e.AsSelect().FieldName())) { // (*types.Err).Is compares texts
			missing = e
		}
	})
	ast.PreOrderVisit(p.ast.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.ID() == failed.NodeID() {
			ast.PostOrderVisit(e, within)
		}
	}))
	return missing
}

// absentHint is how to test for a field that may be absent, if the text can be given.
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
