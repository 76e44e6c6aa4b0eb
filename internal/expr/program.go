package expr

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// Kind is what an expression is for.
type Kind int

// The kinds of expression.
const (
	// Filter is a condition: its result is true or false.
	Filter Kind = iota
	// Value is for a place in an object: its result is any value that JSON can hold.
	Value
)

// Program is a compiled expression. It is immutable and safe for concurrent use.
type Program struct {
	source   source
	ast      *ast.AST
	program  cel.Program
	reads    []Read
	uses     Uses
	warnings []Fault
}

// Compile checks and compiles an expression. Its error is a [Faults].
func Compile(text string, kind Kind) (*Program, error) {
	labelSharedError()
	env, err := newEnv()
	if err != nil {
		return nil, fmt.Errorf("make the environment of expressions: %w", err)
	}
	src := source(text)
	if strings.TrimSpace(text) == "" {
		return nil, Faults{src.fault(0, "the expression is empty")}
	}
	parsed, issues := env.Parse(text)
	if issues.Err() != nil {
		return nil, src.faults(issues.Errors())[:1] // after one mistake the parser reports others that are none
	}
	checked, issues := env.Check(parsed)
	if issues.Err() != nil {
		return nil, src.faults(issues.Errors())
	}
	p := &Program{source: src, ast: checked.NativeRep()}
	p.reads = readsOf(p.ast)
	p.uses = usesOf(p.reads)
	faults, warnings := checkFields(src, p.ast, p.reads)
	if faults = slices.Concat(faults, checkResult(src, kind, checked), checkLiterals(src, p.ast)); len(faults) > 0 {
		return nil, sorted(faults)
	}
	options := []cel.ProgramOption{
		cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit), cel.CostTracking(newSizeCosts()), cel.CustomDecoratorV2(guard(env)),
	}
	if p.program, err = env.Program(checked, options...); err != nil {
		return nil, Faults{src.fault(0, "cannot be evaluated: %v", err)}
	}
	partial, err := env.Program(checked, append(options, cel.EvalOptions(cel.OptPartialEval))...)
	if err != nil {
		return nil, Faults{src.fault(0, "cannot be evaluated: %v", err)}
	}
	faults, vacuous := checkOutcome(src, kind, partial)
	if len(faults) > 0 {
		return nil, Faults(faults)
	}
	p.warnings = sorted(append(warnings, vacuous...))
	return p, nil
}

// String is the expression's text.
func (p *Program) String() string { return string(p.source) }

// Warnings are what works and was perhaps not meant.
func (p *Program) Warnings() []Fault { return p.warnings }

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
		return nil, p.source.evalError(0, reason)
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
		return false, p.source.evalError(0, "the result is neither true nor false")
	}
	return bool(pass), nil
}

func (p *Program) run(ctx context.Context, in Input) (ref.Val, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// Not ContextEval, which costs as much again as the evaluation of a simple condition: the cost limit ends what takes long.
	vars := activation{in: in, identity: p.uses.Identity}
	result, _, err := p.program.Eval(&vars)
	switch {
	case err == nil:
		return result, nil
	case vars.err != nil:
		return nil, vars.err
	default:
		return nil, p.explain(err)
	}
}

// labelSharedError gives cel-go's one shared error value ("no such overload") an id. Evaluations write theirs into it
// as long as it has none (types.LabelErrNode), which is a data race between the first two that meet it; and afterwards it
// would name the place of another expression.
var labelSharedError = sync.OnceFunc(func() { types.LabelErrNode(-1, types.NoSuchOverloadErr()) })
