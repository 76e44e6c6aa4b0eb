package expr

import (
	"slices"
	"strings"

	"cel.dev/cel-go/common/ast"
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
