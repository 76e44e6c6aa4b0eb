package expr

import (
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// This file finds what CEL's type check does not: most of an object is of type dyn, where anything goes.

// checkResult checks the type of the whole expression.
func checkResult(src source, kind Kind, checked *cel.Ast) []Fault {
	t := checked.OutputType()
	switch {
	case kind == Filter && t.Kind() == types.StringKind:
		return []Fault{src.fault(src.start(), "a filter must be true or false, and this is a string; has the YAML around it taken the quotes away?")}
	case kind == Filter && t.Kind() != types.BoolKind && t.Kind() != types.DynKind:
		return []Fault{src.fault(src.start(), "a filter must be true or false, and this is of type %s", t)}
	case kind == Value && t.Kind() == types.OpaqueKind && t.TypeName() == "optional_type":
		return []Fault{src.fault(src.start(), "JSON has no form for an optional value; end it with .orValue(…)")}
	case kind == Value && t.Kind() == types.TypeKind:
		return []Fault{src.fault(src.start(), "JSON has no form for the name of a type")}
	}
	return nil
}

// checkLiterals checks constants that must have a form of their own, and the names of loop variables.
func checkLiterals(src source, a *ast.AST) []Fault {
	var faults []Fault
	add := func(e ast.Expr, format string, args ...any) {
		faults = append(faults, src.fault(src.of(a, e.ID()), format, args...))
	}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			c := e.AsComprehension()
			for _, name := range []string{c.IterVar(), c.IterVar2(), c.AccuVar()} {
				if slices.Contains(variableNames(), name) {
					add(e, "%q is a variable already; give the items another name", name)
				}
			}
		case ast.CallKind:
			checkCall(e.AsCall(), add)
		}
	}))
	return faults
}

func checkCall(call ast.CallExpr, add func(ast.Expr, string, ...any)) {
	args := call.Args()
	switch call.FunctionName() {
	case operators.Equals, operators.NotEquals:
		for i := range args {
			if isType(args[i]) {
				checkType(args[1-i], add)
			}
		}
	case operators.In:
		if isType(args[0]) && args[1].Kind() == ast.ListKind {
			for _, item := range args[1].AsList().Elements() {
				checkType(item, add)
			}
		}
	case "matches", "find", "findAll":
		if !call.IsMemberFunction() {
			args = args[1:] // matches(text, pattern)
		}
		if pattern, ok := literal(args[0]); ok {
			if _, err := regexp.Compile(pattern); err != nil {
				add(args[0], "%v", err)
			}
		}
	case "timestamp":
		if text, ok := literal(args[0]); ok && types.IsError(types.String(text).ConvertToType(types.TimestampType)) {
			add(args[0], "%q is not a time such as 2026-11-21T00:12:03Z", text)
		}
	case "duration":
		if text, ok := literal(args[0]); ok && types.IsError(types.String(text).ConvertToType(types.DurationType)) {
			add(args[0], "%q is not a duration such as 1h30m or 10s", text)
		}
	case "quantity":
		if text, ok := literal(args[0]); ok && types.IsError(toQuantity(types.String(text))) {
			add(args[0], "%q is not a quantity such as 500m, 2 or 1Gi", text)
		}
	}
}

// literal is the text of e if it is a constant.
func literal(e ast.Expr) (text string, ok bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

func isType(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == varType }

// changeTypes are the values of the variable type.
func changeTypes() []string { return []string{"ADDED", "MODIFIED", "DELETED"} }

// checkType reports a text that type never is.
func checkType(e ast.Expr, add func(ast.Expr, string, ...any)) {
	if text, ok := literal(e); ok && !slices.Contains(changeTypes(), text) {
		add(e, "type is never %q; it is one of %s", text, strings.Join(changeTypes(), ", "))
	}
}

// checkFields reports fields that no object has: metadata has the same fields in all objects, and resource has three. It
// warns of a field at the top of an object that looks like a slip; a custom resource may have any.
func checkFields(src source, a *ast.AST, reads []Read) (faults, warnings []Fault) {
	resourceFields := []string{"group", "version", "resource"}
	usual := []string{"apiVersion", "kind", "metadata", "spec", "status", "state"}
	for _, r := range reads {
		first, second := r.name(0), r.name(1)
		switch {
		case first == "":
		case r.variable == varResource && !slices.Contains(resourceFields, first):
			at := src.named(a, r.nodes[0], first)
			faults = append(faults, src.fault(at, "resource has no field %q; there are: %s", first, strings.Join(resourceFields, ", ")))
		case !r.ofObject():
		case first == "metadata" && second != "" && !slices.Contains(MetadataFields(), second):
			at := src.named(a, r.nodes[1], second)
			faults = append(faults, src.fault(at, "metadata has no field %q%s", second, didYouMean(second, MetadataFields())))
		case !slices.Contains(usual, first) && Nearest(first, usual) != "":
			at := src.named(a, r.nodes[0], first)
			warnings = append(warnings, src.fault(at, "objects seldom have a field %q%s", first, didYouMean(first, usual)))
		}
	}
	return faults, warnings
}
