package expr

import (
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
)

// checks finds what CEL's type check does not: most of an object is of type dyn, where anything goes.
type checks struct{ kind Kind }

var _ cel.ASTValidator = checks{}

// Name implements [cel.ASTValidator].
func (checks) Name() string { return "kubeferry" }

// Validate implements [cel.ASTValidator].
func (c checks) Validate(_ *cel.Env, _ cel.ValidatorConfig, a *ast.AST, issues *cel.Issues) {
	if fault := c.resultFault(a.GetType(a.Expr().ID())); fault != "" {
		issues.ReportErrorAtID(a.Expr().ID(), "%s", fault)
	}
	ast.PreOrderVisit(a.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		switch e.Kind() {
		case ast.ComprehensionKind:
			loop := e.AsComprehension()
			for _, name := range []string{loop.IterVar(), loop.IterVar2(), loop.AccuVar()} {
				if variables(c.kind)[name] != nil { // readsOf would take it for the variable
					issues.ReportErrorAtID(e.ID(), "%q is a variable already; give the items another name", name)
				}
			}
		case ast.CallKind:
			if arg := quantityLiteral(e.AsCall()); arg != nil && types.IsError(toQuantity(arg.AsLiteral())) {
				issues.ReportErrorAtID(arg.ID(), "not a quantity such as 500m, 2 or 1Gi")
			}
		}
		if field := metadataField(e); field != "" && !slices.Contains(MetadataFields(), field) {
			issues.ReportErrorAtID(e.ID(), "metadata has no field %q%s", field, didYouMean(field, MetadataFields()))
		}
	}))
}

func (c checks) resultFault(t *types.Type) string {
	switch {
	case c.kind == Filter && t.Kind() != types.BoolKind && t.Kind() != types.DynKind:
		return "a filter must be true or false, and this is of type " + t.String()
	case c.kind == Body && !slices.Contains([]types.Kind{types.MapKind, types.ListKind, types.StringKind, types.NullTypeKind, types.DynKind}, t.Kind()):
		return "a body is a map, a list, text, or null for no record, and this is of type " + t.String()
	case c.kind == Value && t.Kind() == types.OpaqueKind && t.TypeName() == "optional_type":
		return "JSON has no form for an optional value; end it with .orValue(…)"
	case c.kind == Value && t.Kind() == types.TypeKind:
		return "JSON has no form for the name of a type"
	default:
		return ""
	}
}

// quantityLiteral is the constant that a call makes a quantity of, or nil.
func quantityLiteral(call ast.CallExpr) ast.Expr {
	if call.FunctionName() != "quantity" || call.Args()[0].Kind() != ast.LiteralKind {
		return nil
	}
	return call.Args()[0]
}

// metadataField is the field that e reads of metadata, which are the same for all kinds, or "".
func metadataField(e ast.Expr) string {
	metadata, field := stepOf(e)
	if metadata == nil {
		return ""
	}
	object, name := stepOf(metadata)
	if object == nil || name.Name != "metadata" || object.Kind() != ast.IdentKind {
		return ""
	}
	if variable := variableOf(object); variable != varObject && variable != varOldObject {
		return ""
	}
	return field.Name
}
