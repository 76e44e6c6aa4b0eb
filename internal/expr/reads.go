package expr

import (
	"slices"
	"strconv"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// Read is a place that an expression looks at: a variable, and the names and indices that lead on from it as far as
// they are constants.
type Read struct {
	variable string
	steps    []any // string or int64
	// tested says that all the expression asks is whether the place is there.
	tested bool
}

// Reads lists the places that the expression looks at, in the order of its text. They are for people who want to know
// why it says what it says; an evaluation may come to some of them only.
func (p *Program) Reads() []Read {
	var reads []Read
	collectReads(p.ast.Expr(), func(r Read) {
		if !slices.ContainsFunc(reads, r.same) {
			reads = append(reads, r)
		}
	})
	// has(a.b) && a.b.c: what is said of a.b.c says enough of a.b.
	return slices.DeleteFunc(reads, func(r Read) bool { return r.tested && slices.ContainsFunc(reads, r.leadsTo) })
}

func (r Read) same(other Read) bool {
	return r.variable == other.variable && slices.Equal(r.steps, other.steps)
}

func (r Read) leadsTo(other Read) bool {
	return r.variable == other.variable && len(r.steps) < len(other.steps) && slices.Equal(r.steps, other.steps[:len(r.steps)])
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
			if isIdentifier(step) {
				b.WriteString("." + step)
			} else {
				b.WriteString("[" + strconv.Quote(step) + "]")
			}
		}
	}
	return b.String()
}

func isIdentifier(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return text != ""
}

// In is what is there, and whether anything is. An error means that the input cannot be read.
func (r Read) In(in Input) (value any, ok bool, err error) {
	switch r.variable {
	case varObject, varOldObject:
		read := in.Object
		if r.variable == varOldObject {
			read = in.OldObject
		}
		object, err := read()
		if err != nil {
			return nil, false, &InputError{cause: err}
		}
		if object != nil {
			value = object
		}
	case varType:
		value = in.Type()
	case varResource:
		gvr := in.Resource()
		value = map[string]any{"group": gvr.Group, "version": gvr.Version, "resource": gvr.Resource}
	case varSnapshot:
		value = in.Snapshot()
	case varInferred:
		value = in.Inferred()
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

// collectReads finds the longest chains that begin with a variable.
func collectReads(e ast.Expr, found func(Read)) {
	if r, ok := chain(e); ok {
		found(r)
		return
	}
	var children []ast.Expr
	switch e.Kind() {
	case ast.SelectKind:
		children = []ast.Expr{e.AsSelect().Operand()}
	case ast.CallKind:
		if call := e.AsCall(); call.IsMemberFunction() {
			children = append([]ast.Expr{call.Target()}, call.Args()...)
		} else {
			children = call.Args()
		}
	case ast.ListKind:
		children = e.AsList().Elements()
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			children = append(children, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		children = []ast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()}
	}
	for _, child := range children {
		collectReads(child, found)
	}
}

// chain reads an expression that is a variable and constant steps from it. No macro binds a variable's name: see
// literalFaults.
func chain(e ast.Expr) (Read, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		name := strings.TrimPrefix(e.AsIdent(), ".")
		return Read{variable: name}, slices.Contains(variableNames(), name)
	case ast.SelectKind:
		s := e.AsSelect()
		r, ok := chain(s.Operand())
		return Read{r.variable, append(r.steps, s.FieldName()), s.IsTestOnly()}, ok
	case ast.CallKind:
		call := e.AsCall()
		if name := call.FunctionName(); name != operators.Index && name != operators.OptIndex && name != operators.OptSelect || len(call.Args()) != 2 {
			return Read{}, false
		}
		r, ok := chain(call.Args()[0])
		if !ok || call.Args()[1].Kind() != ast.LiteralKind {
			return Read{}, false
		}
		switch step := call.Args()[1].AsLiteral().(type) {
		case types.String:
			return Read{variable: r.variable, steps: append(r.steps, string(step))}, true
		case types.Int:
			return Read{variable: r.variable, steps: append(r.steps, int64(step))}, true
		}
	}
	return Read{}, false
}
