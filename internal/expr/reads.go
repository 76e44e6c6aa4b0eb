package expr

import (
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// Read is a place that an expression looks at: a variable, and the path that leads on from it as far as it is constant.
type Read struct {
	variable string
	path     fieldpath.Path
}

// Reads lists the places that the expression looks at, in the order of its text. They show people why it has its result. An evaluation may
// read only some of them.
func (p *Program) Reads() []Read { return p.reads }

func (p *Program) readsAny(is func(Read) bool) bool { return slices.ContainsFunc(p.reads, is) }

// dependsOnChange reports whether the place is about what happened to the object.
func (r Read) dependsOnChange() bool { return r.variable != varObject && r.variable != varResource }

// needsDecoding reports whether the place is none of those that [Identity.object] has.
func (r Read) needsDecoding() bool {
	return r.variable == varObject && !slices.Contains([]string{
		"apiVersion", "kind", "metadata.name", "metadata.namespace", "metadata.uid", "metadata.resourceVersion",
	}, r.path.String())
}

// readsOf finds the longest chains of constant steps that begin with a variable. No macro binds a variable's name: see
// checks.
func readsOf(a *ast.AST, variables map[string]*types.Type) []Read {
	var reads []Read
	inner := map[int64]bool{}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if inner[e.ID()] {
			return
		}
		var steps []fieldpath.Step
		at := e
		for operand, step := stepOf(at); operand != nil; operand, step = stepOf(at) {
			steps = append(steps, step)
			inner[operand.ID()] = true
			at = operand
		}
		slices.Reverse(steps)
		read := Read{variableOf(at), fieldpath.New(steps...)}
		if read.variable == varChangedBy { // a list, which is shown as a whole
			read.path = fieldpath.Path{}
		}
		known := slices.ContainsFunc(reads, func(r Read) bool { return r.String() == read.String() })
		if variables[read.variable] != nil && !known {
			reads = append(reads, read)
		}
	}))
	return reads
}

// variableOf is the name that e is, or "".
func variableOf(e ast.Expr) string {
	if e.Kind() != ast.IdentKind {
		return ""
	}
	return strings.TrimPrefix(e.AsIdent(), ".")
}

// stepOf takes the last step off a chain. The operand is nil if e is no step by a constant.
func stepOf(e ast.Expr) (operand ast.Expr, step fieldpath.Step) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().Operand(), fieldpath.Step{Name: e.AsSelect().FieldName()}
	case ast.CallKind:
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return nil, step
		}
		if args[1].Kind() != ast.LiteralKind {
			return nil, step
		}
		switch literal := args[1].AsLiteral().(type) {
		case types.String:
			return args[0], fieldpath.Step{Name: string(literal)}
		case types.Int:
			if literal >= 0 {
				return args[0], fieldpath.Step{Kind: fieldpath.Index, Index: int(literal)}
			}
		}
	}
	return nil, step
}

// String writes the place: object.metadata.labels["example.com/owner"].
func (r Read) String() string {
	path := r.path.String()
	if path == "" || path[0] == '[' {
		return r.variable + path
	}
	return r.variable + "." + path
}

// In returns the value at the place, and whether there is one. An error means that the input cannot be read.
func (r Read) In(in Input) (value any, ok bool, err error) {
	vars := activation{in: in}
	root, _ := vars.ResolveName(r.variable)
	switch {
	case vars.err != nil:
		return nil, false, vars.err
	case root == types.NullValue:
		root = nil
	}
	if r.path.Len() == 0 {
		return root, true, nil
	}
	object, _ := root.(map[string]any)
	r.path.Visit(object, func(found any) { value, ok = found, true })
	return value, ok, nil
}
