package expr

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// Read is a place that an expression looks at: a variable, and the names and indices that lead on from it as far as they
// are constants.
type Read struct {
	variable string
	steps    []any   // string or int64
	nodes    []int64 // the ids of the nodes that contain the steps
	tested   bool    // by has(), which reads no value
}

// Reads lists the places that the expression looks at, in the order of its text, for people who want to see why it has
// its result. An evaluation may read only some of them.
func (p *Program) Reads() []Read {
	var reads []Read
	for _, r := range p.reads {
		if !slices.ContainsFunc(reads, func(other Read) bool { return r.String() == other.String() }) {
			reads = append(reads, r)
		}
	}
	// has(a.b) && a.b.c: the value of a.b.c shows enough of a.b.
	return slices.DeleteFunc(reads, func(r Read) bool { return r.tested && slices.ContainsFunc(reads, r.leadsTo) })
}

func (r Read) ofObject() bool { return r.variable == varObject || r.variable == varOldObject }

// name is one of the steps, "" if that is an index or there are not so many.
func (r Read) name(step int) string {
	if step >= len(r.steps) {
		return ""
	}
	name, _ := r.steps[step].(string)
	return name
}

func (r Read) leadsTo(other Read) bool {
	return r.variable == other.variable && len(r.steps) < len(other.steps) && slices.Equal(r.steps, other.steps[:len(r.steps)])
}

// readsOf finds the longest chains of constant steps that begin with a variable. No macro binds a variable's name: see
// checkLiterals.
func readsOf(a *ast.AST) []Read {
	var reads []Read
	inner := map[int64]bool{}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if inner[e.ID()] {
			return
		}
		var r Read
		at := e
		for {
			operand, step, node := stepOf(at)
			if operand == nil {
				break
			}
			r.steps, r.nodes = append(r.steps, step), append(r.nodes, node)
			r.tested = r.tested || at.Kind() == ast.SelectKind && at.AsSelect().IsTestOnly()
			inner[operand.ID()] = true
			at = operand
		}
		if at.Kind() != ast.IdentKind {
			return
		}
		r.variable = strings.TrimPrefix(at.AsIdent(), ".")
		if !slices.Contains(variableNames(), r.variable) {
			return
		}
		slices.Reverse(r.steps)
		slices.Reverse(r.nodes)
		reads = append(reads, r)
	}))
	return reads
}

// stepOf takes the last step off a chain: the expression before it, the name or index, and the node that contains it. The
// operand is nil if e is no step by a constant.
func stepOf(e ast.Expr) (operand ast.Expr, step any, node int64) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), e.ID()
	case ast.CallKind:
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
		default:
			return nil, nil, 0
		}
		if args[1].Kind() != ast.LiteralKind {
			return nil, nil, 0
		}
		switch step := args[1].AsLiteral().(type) {
		case types.String:
			return args[0], string(step), args[1].ID()
		case types.Int:
			return args[0], int64(step), args[1].ID()
		}
	}
	return nil, nil, 0
}

// String writes the place as an expression would: object.metadata.labels["example.com/owner"].
func (r Read) String() string {
	var b strings.Builder
	b.WriteString(r.variable)
	for _, step := range r.steps {
		switch step := step.(type) {
		case int64:
			b.WriteString("[" + strconv.FormatInt(step, 10) + "]")
		case string:
			if identifier.MatchString(step) {
				b.WriteString("." + step)
			} else {
				b.WriteString("[" + strconv.Quote(step) + "]")
			}
		}
	}
	return b.String()
}

var identifier = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9]*$`)

// In is what is there, and whether anything is. An error means that the input cannot be read.
func (r Read) In(in Input) (value any, ok bool, err error) {
	a := activation{in: in}
	value, _ = a.ResolveName(r.variable)
	if a.err != nil {
		return nil, false, a.err
	}
	if value == types.NullValue {
		value = nil
	}
	for _, step := range r.steps {
		if value, ok = stepInto(value, step); !ok {
			return nil, false, nil
		}
	}
	return value, true, nil
}

func stepInto(value, step any) (any, bool) {
	switch step := step.(type) {
	case string:
		members, _ := value.(map[string]any)
		member, ok := members[step]
		return member, ok
	case int64:
		items, _ := value.([]any)
		if step < 0 || step >= int64(len(items)) {
			return nil, false
		}
		return items[step], true
	default:
		return nil, false
	}
}
