package expr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Kind says where an expression is used. This decides its variables and the type of its result.
type Kind int

// The kinds of expression.
const (
	// Filter is a condition: its result is true or false.
	Filter Kind = iota
	// Value is for a place in an object: its result is any value that JSON can hold.
	Value
	// Body is for a record: its result is a map, a list, text, or null for no record. Its input is a [Message].
	Body
)

// Program is a compiled expression. It is immutable and safe for concurrent use.
type Program struct {
	text    string
	ast     *ast.AST
	program cel.Program
	brief   cel.Program // with BriefLimit
	reads   []Read
	// identityOnly is set if the expression reads nothing of object but its identity.
	identityOnly bool
	objectOnly   bool
}

// Compile checks and compiles an expression. Its error has all faults, as CEL shows them: with their places in the text.
func Compile(text string, kind Kind) (*Program, error) {
	labelSharedError()
	env, err := newEnv(kind, cel.ASTValidators(cel.ValidateTimestampLiterals(), cel.ValidateDurationLiterals(), checks{kind}))
	if err != nil {
		return nil, fmt.Errorf("make the environment of expressions: %w", err)
	}
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("the expression is empty")
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	if kind == Body {
		freeNulls(parsed.NativeRep())
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	p := &Program{text: text, ast: checked.NativeRep()}
	p.reads = readsOf(p.ast, variables(kind))
	p.identityOnly = !p.readsAny(Read.needsDecoding)
	p.objectOnly = !p.readsAny(Read.dependsOnChange)
	limited := func(limit int) (cel.Program, error) {
		return env.Program(checked,
			cel.EvalOptions(cel.OptOptimize), cel.CostLimit(uint64(limit)), cel.CostTracking(newCosts()), cel.CustomDecoratorV2(guard(env, limit)))
	}
	if p.program, err = limited(costLimit); err != nil { // a constant that is no regular expression, for example
		return nil, fmt.Errorf("cannot be evaluated: %w", err)
	}
	if p.brief, err = limited(BriefLimit); err != nil {
		return nil, fmt.Errorf("cannot be evaluated: %w", err)
	}
	return p, nil
}

// String is the expression's text.
func (p *Program) String() string { return p.text }

// ObjectOnly reports whether the result depends on nothing but one version of the object and its resource: it
// selects objects, not changes of them.
func (p *Program) ObjectOnly() bool { return p.objectOnly }

// NeedsOld reports whether the expression reads the previous version.
func (p *Program) NeedsOld() bool {
	return p.readsAny(func(r Read) bool { return r.variable == varOldObject })
}

// SeesNotices reports whether a [Body] reads what only gaps and marks have, or what distinguishes them from changes.
func (p *Program) SeesNotices() bool {
	return p.readsAny(func(r Read) bool { return r.variable == varNotice || r.variable == varType })
}

// Eval evaluates the expression. The result is a copy, made of nil, bool, int64, float64, string, []any and
// map[string]any. Its error is an [*EvalError], an [*InputError], or the context's if that has ended before: an evaluation
// takes some 100 ms at most, and is not interrupted.
func (p *Program) Eval(ctx context.Context, in Input) (any, error) {
	result, err := p.run(ctx, in)
	if err != nil {
		return nil, err
	}
	value, reason := plain(result)
	if reason != "" {
		return nil, p.evalError(p.ast.Expr(), reason)
	}
	return value, nil
}

// Pass is Eval for a [Filter]: the result is true or false.
func (p *Program) Pass(ctx context.Context, in Input) (bool, error) {
	result, err := p.run(ctx, in)
	if err != nil {
		return false, err
	}
	pass, ok := result.(types.Bool)
	if !ok {
		return false, p.evalError(p.ast.Expr(), "the result is neither true nor false")
	}
	return bool(pass), nil
}

func (p *Program) run(ctx context.Context, in Input) (ref.Val, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Not ContextEval, which costs as much again as the evaluation of a simple condition: the cost limit ends what takes long.
	vars := activation{in: in, identity: p.identityOnly}
	program := p.program
	metered, ok := in.(Metered)
	brief := ok && metered.Brief()
	if brief {
		program = p.brief
	}
	result, details, err := program.Eval(&vars)
	if cost := details.ActualCost(); ok && cost != nil {
		metered.Spent(*cost)
	}
	switch {
	case err == nil:
		return result, nil
	case vars.err != nil:
		return nil, vars.err
	case tooExpensive(err):
		return nil, p.tooMuch(brief)
	default:
		return nil, p.explain(err)
	}
}

// freeNulls makes each null of the text one of any type. CEL's type check refuses `condition ? null : {…}`, whose branches are of two types.
func freeNulls(a *ast.AST) {
	factory, next := ast.NewExprFactory(), ast.MaxID(a)
	var nulls []ast.Expr
	ast.PostOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if e.Kind() == ast.LiteralKind && e.AsLiteral() == types.NullValue {
			nulls = append(nulls, e)
		}
	}))
	for _, null := range nulls {
		next++
		e := factory.NewLiteral(next, types.NullValue)
		null.SetKindCase(factory.NewCall(null.ID(), "dyn", e))
	}
}

// labelSharedError gives cel-go's one shared error value ("no such overload") an id. As long as it has none, each evaluation that returns
// it writes its own (types.LabelErrNode). Two that do so at once are a data race, and the id would be the place of another expression.
var labelSharedError = sync.OnceFunc(func() { types.LabelErrNode(-1, types.NoSuchOverloadErr()) })
