package expr

import (
	"errors"
	"fmt"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// EvalError is the error of an expression that has no result for an object. It is made of the expression's text alone, and holds
// nothing of the object.
type EvalError struct {
	// Line and Column of the place in the text, as in the errors of [Compile].
	Line, Column int
	Message      string
	// TooExpensive is set if the evaluation was stopped at its cost limit: it has no result because of how large the object
	// is, which whoever may write the object can choose.
	TooExpensive bool
}

// Error is the place and the reason.
func (e *EvalError) Error() string {
	return fmt.Sprintf("expression, at %d:%d: %s", e.Line, e.Column, e.Message)
}

func (p *Program) evalError(at ast.Expr, reason string) *EvalError {
	place := p.ast.SourceInfo().GetStartLocation(at.ID())
	return &EvalError{Line: place.Line(), Column: place.Column() + 1, Message: reason}
}

// explain makes an EvalError of cel-go's error. The messages of cel-go quote values ("no such key: …", "invalid RFC 3339
// timestamp …"), so none is passed on: the reason is made of the expression's own text.
func (p *Program) explain(err error) error {
	at := p.ast.Expr()
	var failed *types.Err
	if errors.As(err, &failed) {
		at = p.node(failed.NodeID())
	}
	if missing := missingField(at, err); missing != nil {
		reason := fmt.Sprintf("there is no field %q", missing.AsSelect().FieldName())
		if text, err := cel.ExprToString(missing, p.ast.SourceInfo()); err == nil {
			reason += fmt.Sprintf("; check with has(%s) first", text)
		}
		return p.evalError(missing, reason)
	}
	return p.evalError(at, "there is no result: a value is absent, or is not of the type or form that is needed here")
}

// tooExpensive reports whether an evaluation reached the cost limit.
func tooExpensive(err error) bool {
	var cancelled interpreter.EvalCancelledError
	return errors.As(err, &cancelled)
}

func (p *Program) tooMuch(brief bool) error {
	reason := overLimit()
	if brief {
		reason = fmt.Sprintf("it costs too much: more than %d steps, after others on objects of the namespace that took as many as a namespace may", BriefLimit)
	}
	failed := p.evalError(p.ast.Expr(), reason)
	failed.TooExpensive = true
	return failed
}

func overLimit() string { return fmt.Sprintf("it costs too much: more than %d steps", costLimit) }

// node is the part of the expression with an id, or all of it.
func (p *Program) node(id int64) ast.Expr {
	found := p.ast.Expr()
	ast.PreOrderVisit(p.ast.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.ID() == id {
			found = e
		}
	}))
	return found
}

// missingField is the selection whose field the object does not have, or nil. cel-go names the outermost of a chain of
// selections; the missing one is that whose name is the key in the message.
func missingField(failed ast.Expr, err error) (missing ast.Expr) {
	ast.PostOrderVisit(failed, ast.NewExprVisitor(func(e ast.Expr) {
		if missing == nil && e.Kind() == ast.SelectKind && !e.AsSelect().IsTestOnly() &&
			errors.Is(err, errors.New("no such key: "+e.AsSelect().FieldName())) { // (*types.Err).Is compares texts
			missing = e
		}
	}))
	return missing
}
