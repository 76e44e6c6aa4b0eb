package expr

import (
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// Uses says which variables an expression reads.
type Uses struct {
	Object, OldObject, Type, Resource, Snapshot, Inferred bool
	// Identity is set if all that the expression reads of object are fields of [Identity], so that it can be evaluated
	// without decoding the object.
	Identity bool
}

// ObjectOnly reports whether the result depends on nothing but one version of the object and its resource: it says
// which objects are meant, not which changes of them.
func (u Uses) ObjectOnly() bool { return !u.OldObject && !u.Type && !u.Snapshot && !u.Inferred }

// Uses says which variables the expression reads.
func (p *Program) Uses() Uses { return p.uses }

// identityFields are the fields of [Identity] that an expression reads.
type identityFields struct{ apiVersion, kind, namespace, name, uid, resourceVersion bool }

// field is where f notes a path of object, nil if it is not part of an [Identity].
func (f *identityFields) field(path []string) *bool {
	switch {
	case slices.Equal(path, []string{"apiVersion"}):
		return &f.apiVersion
	case slices.Equal(path, []string{"kind"}):
		return &f.kind
	case len(path) != 2 || path[0] != "metadata":
		return nil
	}
	switch path[1] {
	case "namespace":
		return &f.namespace
	case "name":
		return &f.name
	case "uid":
		return &f.uid
	case "resourceVersion":
		return &f.resourceVersion
	default:
		return nil
	}
}

// of is the part of an object that the expression reads.
func (f *identityFields) of(id Identity) map[string]any {
	object, metadata := map[string]any{}, map[string]string{}
	if f.apiVersion && id.APIVersion != "" {
		object["apiVersion"] = id.APIVersion
	}
	if f.kind && id.Kind != "" {
		object["kind"] = id.Kind
	}
	set := func(read bool, key, value string) {
		if read && value != "" {
			metadata[key] = value
		}
	}
	set(f.namespace, "namespace", id.Namespace)
	set(f.name, "name", id.Name)
	set(f.uid, "uid", id.UID)
	set(f.resourceVersion, "resourceVersion", id.ResourceVersion)
	object["metadata"] = metadata
	return object
}

// usesOf finds the variables; the fields are nil unless Uses.Identity is set.
func usesOf(a *ast.AST) (Uses, *identityFields) {
	var uses Uses
	var fields identityFields
	deep := false
	walk(a, func(_ ast.Expr, name string, path []string) {
		switch name {
		case varObject:
			uses.Object = true
			if read := fields.field(path); read != nil {
				*read = true
			} else {
				deep = true
			}
		case varOldObject:
			uses.OldObject = true
		case varType:
			uses.Type = true
		case varResource:
			uses.Resource = true
		case varSnapshot:
			uses.Snapshot = true
		case varInferred:
			uses.Inferred = true
		}
	})
	if !uses.Object || deep {
		return uses, nil
	}
	uses.Identity = true
	return uses, &fields
}

// walk calls f for each use of a variable, with the fields that are selected from it one after the other, and the
// outermost of these selections. No macro binds a variable's name: see shadowFaults.
func walk(a *ast.AST, f func(e ast.Expr, name string, path []string)) {
	ast.PreOrderVisit(a.Expr(), outermost(func(e ast.Expr) {
		var path []string
		inner := e
		for inner.Kind() == ast.SelectKind {
			path = append(path, inner.AsSelect().FieldName())
			inner = inner.AsSelect().Operand()
		}
		if inner.Kind() == ast.IdentKind {
			slices.Reverse(path)
			f(e, strings.TrimPrefix(inner.AsIdent(), "."), path)
		}
	}))
}

// outermost visits names and selections, but for those that something further is selected from.
func outermost(f func(e ast.Expr)) ast.Visitor {
	inner := map[int64]bool{}
	return ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.SelectKind:
			inner[e.AsSelect().Operand().ID()] = true
		case ast.IdentKind:
		default:
			return
		}
		if !inner[e.ID()] {
			f(e)
		}
	})
}

// FieldUse is a place in an object that an expression reads.
type FieldUse struct {
	// Old is set for oldObject.
	Old  bool
	Path []string
	// Optional is set if the expression goes on where a part of the path is absent, and Asks if it is a has().
	Optional, Asks bool
	// Offset is where the path begins in the text, in bytes.
	Offset int
	steps  []ast.Expr // what names each part of the path
}

// FieldUses are the places in object and oldObject that the expression reads by names, in no order.
func (p *Program) FieldUses() []FieldUse { return fieldUsesOf(p.source, p.ast) }

// fieldUsesOf also follows .?name, ["name"] and [?"name"], which [walk] does not.
func fieldUsesOf(src *source, a *ast.AST) []FieldUse {
	var reads []FieldUse
	inner := map[int64]bool{}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		if inner[e.ID()] {
			return
		}
		var r FieldUse
		for at := e; ; {
			operand, name, step := stepOf(at)
			if operand == nil {
				if !isVariable(at, varObject) && !isVariable(at, varOldObject) {
					return
				}
				r.Old = isVariable(at, varOldObject)
				r.Offset, _ = src.of(a, at.ID())
				break
			}
			r.Path, r.steps = append(r.Path, name), append(r.steps, step)
			r.Asks = r.Asks || at.Kind() == ast.SelectKind && at.AsSelect().IsTestOnly()
			r.Optional = r.Optional || at.Kind() == ast.CallKind && at.AsCall().FunctionName() != operators.Index
			inner[operand.ID()] = true
			at = operand
		}
		slices.Reverse(r.Path)
		slices.Reverse(r.steps)
		reads = append(reads, r)
	}))
	return reads
}

// stepOf takes the last step off a path: the expression before it, the name, and what holds the name. The operand is nil
// if e is no step by a name.
func stepOf(e ast.Expr) (operand ast.Expr, name string, step ast.Expr) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().Operand(), e.AsSelect().FieldName(), e
	case ast.CallKind:
		switch e.AsCall().FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect:
			args := e.AsCall().Args()
			if text, at := literal(args[1:]); at != nil {
				return args[0], text, at
			}
		}
	}
	return nil, "", nil
}
