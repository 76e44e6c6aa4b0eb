package expr

import (
	"errors"
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// This file finds what CEL's type check does not: most of an object is of type dyn, where anything goes.

// resultFaults checks the type of the whole expression.
func resultFaults(src *source, kind Kind, checked *cel.Ast) []Fault {
	t := checked.OutputType()
	start := src.start()
	switch {
	case kind == Filter && t.Kind() != types.BoolKind && t.Kind() != types.DynKind:
		hint := ""
		if t.Kind() == types.StringKind {
			hint = "; has the YAML around it taken the quotes away?"
		}
		return []Fault{src.fault(start, "a filter must be true or false, and this is %s%s", typeNoun(t.String()), hint)}
	case kind == Value && (t.Kind() == types.TypeKind || isOptional(t)):
		hint := ""
		if isOptional(t) {
			hint = "; end it with .orValue(…)"
		}
		return []Fault{src.fault(start, "this is %s, which JSON has no form for%s", typeNoun(t.String()), hint)}
	}
	if kind == Value && hasOddKeys(t) {
		return []Fault{src.fault(start, "this holds a map whose keys are not text, which JSON has no form for")}
	}
	return nil
}

// hasOddKeys reports whether a type holds a map with keys that are no text.
func hasOddKeys(t *cel.Type) bool {
	if t.Kind() == types.MapKind {
		switch t.Parameters()[0].Kind() {
		case types.StringKind, types.DynKind, types.AnyKind, types.TypeParamKind:
		default:
			return true
		}
	}
	return slices.ContainsFunc(t.Parameters(), hasOddKeys)
}

func isOptional(t *cel.Type) bool {
	return t.Kind() == types.OpaqueKind && t.TypeName() == "optional_type"
}

// literalFaults checks constants that must have a form of their own, and names.
func literalFaults(src *source, a *ast.AST) []Fault {
	var faults []Fault
	add := func(e ast.Expr, format string, args ...any) {
		at, _ := src.of(a, e.ID())
		faults = append(faults, src.fault(at, format, args...))
	}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			c := e.AsComprehension()
			for _, name := range []string{c.IterVar(), c.IterVar2(), c.AccuVar()} {
				if slices.Contains(variableNames(), name) {
					add(e, "%q is a variable already; give what this goes through another name", name)
				}
			}
		case ast.CallKind:
			callFaults(e.AsCall(), add)
		}
	}))
	return faults
}

func callFaults(call ast.CallExpr, add func(ast.Expr, string, ...any)) {
	args := call.Args()
	switch call.FunctionName() {
	case operators.Equals, operators.NotEquals:
		for i := range args {
			if isVariable(args[1-i], varType) {
				typeFault(args[i], add)
			}
		}
	case operators.In:
		if isVariable(args[0], varType) && args[1].Kind() == ast.ListKind {
			for _, item := range args[1].AsList().Elements() {
				typeFault(item, add)
			}
		}
	case "matches", "find", "findAll":
		if !call.IsMemberFunction() {
			args = args[1:] // matches(text, pattern)
		}
		if pattern, at := literal(args); at != nil {
			regexFault(pattern, at, add)
		}
	case "timestamp":
		if text, at := literal(args); at != nil && types.IsError(types.String(text).ConvertToType(types.TimestampType)) {
			add(at, "%q is not a time such as 2026-11-21T00:12:03Z", text)
		}
	case "duration":
		if text, at := literal(args); at != nil && types.IsError(types.String(text).ConvertToType(types.DurationType)) {
			add(at, "%q is not a duration such as 1h30m or 10s", text)
		}
	case "quantity":
		if text, at := literal(args); at != nil {
			if _, err := parseQuantity(types.String(text)); err != nil {
				add(at, "%q is not a quantity such as 500m, 2 or 1Gi", text)
			}
		}
	}
}

func isVariable(e ast.Expr, name string) bool {
	return e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == name
}

// literal is the text of the first of args if it is a constant.
func literal(args []ast.Expr) (text string, at ast.Expr) {
	if len(args) == 0 || args[0].Kind() != ast.LiteralKind {
		return "", nil
	}
	s, ok := args[0].AsLiteral().(types.String)
	if !ok {
		return "", nil
	}
	return string(s), args[0]
}

// deltaTypes are the values of the variable type.
func deltaTypes() []string { return []string{"ADDED", "MODIFIED", "DELETED"} }

// typeFault reports a text that type never is.
func typeFault(e ast.Expr, add func(ast.Expr, string, ...any)) {
	if text, at := literal([]ast.Expr{e}); at != nil && !slices.Contains(deltaTypes(), text) {
		add(at, "type is never %q%s", text, didYouMean(text, deltaTypes()))
	}
}

func regexFault(pattern string, at ast.Expr, add func(ast.Expr, string, ...any)) {
	_, err := regexp.Compile(pattern)
	var wrong *syntax.Error
	switch {
	case errors.As(err, &wrong):
		add(at, "not a regular expression: %s: %s", wrong.Code, wrong.Expr)
	case err != nil:
		add(at, "not a regular expression: %v", err)
	}
}

// pathFaults reports fields that no object has: metadata has the same fields in all objects, and resource has three.
func pathFaults(src *source, a *ast.AST) []Fault {
	var faults []Fault
	walk(a, func(e ast.Expr, name string, path []string) {
		switch {
		case name == varResource && len(path) > 0 && !slices.Contains(resourceFields(), path[0]):
			faults = append(faults, src.fault(src.step(a, e, len(path)-1), "resource has no field %q%s", path[0], didYouMean(path[0], resourceFields())))
		}
	})
	for _, r := range fieldUsesOf(src, a) {
		if len(r.Path) > 1 && r.Path[0] == "metadata" && !slices.Contains(metadataFields(), r.Path[1]) {
			faults = append(faults, src.fault(src.named(a, r.steps[1], r.Path[1]), "metadata has no field %q%s", r.Path[1], nearest(r.Path[1], metadataFields())))
		}
	}
	return faults
}

// contraryFaults reports a condition that wants two values in one place.
func contraryFaults(src *source, a *ast.AST) []Fault {
	wanted := map[string]ref.Val{}
	var faults []Fault
	var visit func(e ast.Expr)
	visit = func(e ast.Expr) {
		if e.Kind() != ast.CallKind {
			return
		}
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.LogicalAnd:
			for _, arg := range args {
				visit(arg)
			}
		case operators.Equals:
			for i := range args {
				place, value := placeOf(args[i]), args[1-i]
				if place == "" || value.Kind() != ast.LiteralKind {
					continue
				}
				if before, ok := wanted[place]; ok && types.Equal(before, value.AsLiteral()) != types.True {
					at, _ := src.of(a, e.ID())
					faults = append(faults, src.fault(at, "is never true beside the other condition for %s, which has one value: nothing would pass", place))
				}
				wanted[place] = value.AsLiteral()
			}
		}
	}
	visit(a.Expr())
	return faults
}

// placeOf is the text of a path of names that begins with a variable, "" for something else.
func placeOf(e ast.Expr) string {
	if e.Kind() == ast.IdentKind && slices.Contains(variableNames(), e.AsIdent()) {
		return e.AsIdent()
	}
	operand, name, _ := stepOf(e)
	if operand == nil || e.Kind() == ast.SelectKind && e.AsSelect().IsTestOnly() {
		return ""
	}
	if before := placeOf(operand); before != "" {
		return before + "." + name
	}
	return ""
}

// pathWarnings reports fields at the top of an object that look like a slip; a custom resource may have any.
func pathWarnings(src *source, a *ast.AST) []Fault {
	var warnings []Fault
	for _, r := range fieldUsesOf(src, a) {
		if len(r.Path) == 0 || slices.Contains(usualFields(), r.Path[0]) {
			continue
		}
		if hint := nearest(r.Path[0], usualFields()); hint != "" {
			warnings = append(warnings, src.fault(src.named(a, r.steps[0], r.Path[0]), "objects seldom have a field %q%s", r.Path[0], hint))
		}
	}
	return sorted(warnings)
}

// step is where the name of a selection begins, counted from the last of a chain: 0 is the outermost.
func (s *source) step(a *ast.AST, e ast.Expr, outer int) int {
	for range outer {
		e = e.AsSelect().Operand()
	}
	dot, ok := s.of(a, e.ID())
	if !ok {
		return 0
	}
	// The place of a selection is its dot; in has(a.b) it is that of the macro, before it.
	name := e.AsSelect().FieldName()
	if i := strings.Index(s.text[dot:], "."+name); i >= 0 {
		return dot + i + 1
	}
	return dot
}

// named is where a step of a [FieldUse] says its name.
func (s *source) named(a *ast.AST, step ast.Expr, name string) int {
	if step.Kind() == ast.SelectKind {
		return s.step(a, step, 0)
	}
	at, _ := s.of(a, step.ID())
	if i := strings.Index(s.text[at:], name); i >= 0 {
		return at + i
	}
	return at
}

func resourceFields() []string { return []string{"group", "version", "resource"} }

// metadataFields are those of ObjectMeta (k8s.io/apimachinery/pkg/apis/meta/v1/types.go).
func metadataFields() []string {
	return []string{
		"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
		"generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
	}
}

// usualFields are those that most kinds have at the top, and those that the built-in kinds have there in place of a spec.
func usualFields() []string {
	return []string{
		"apiVersion", "kind", "metadata", "spec", "status", "data", "stringData", "binaryData", "immutable", "type", "rules",
		"roleRef", "subjects", "secrets", "imagePullSecrets", "automountServiceAccountToken", "provisioner", "parameters",
		"reclaimPolicy", "mountOptions", "allowVolumeExpansion", "volumeBindingMode", "allowedTopologies", "webhooks",
		"addressType", "endpoints", "ports", "subsets", "value", "globalDefault", "preemptionPolicy", "description", "handler",
		"overhead", "scheduling", "aggregationRule", "template", "revision", "reason", "message", "note", "count", "source",
		"firstTimestamp", "lastTimestamp", "eventTime", "series", "action", "involvedObject", "regarding", "related",
		"reportingComponent", "reportingController", "reportingInstance", "deprecatedCount", "deprecatedSource",
		"deprecatedFirstTimestamp", "deprecatedLastTimestamp", "webhooks", "driver", "nodeName", "state", "target", "conditions",
	}
}
