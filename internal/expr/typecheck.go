package expr

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// This file puts the type checker's complaints into plain words; see syntax.go for what it does not know.

var (
	undeclared = regexp.MustCompile(`^undeclared reference to '([^']*)'`)
	noOverload = regexp.MustCompile(`^found no matching overload for '([^']*)' applied to '(.*)'$`)
	mismatch   = regexp.MustCompile(`^expected type '(.*)' but found '(.*)'$`)
	noFields   = regexp.MustCompile(`^type '(.*)' does not support field selection$`)
	noRange    = regexp.MustCompile(`^expression of type '(.*)' cannot be range of a comprehension`)
)

// checker knows the expression that did not pass the type check.
type checker struct {
	src   *source
	env   *cel.Env
	ast   *ast.AST
	nodes map[int64]ast.Expr
	above map[int64]ast.Expr // the innermost call that a node is part of
}

func typeFaults(src *source, env *cel.Env, parsed *ast.AST, issues []*common.Error) Faults {
	c := checker{src, env, parsed, map[int64]ast.Expr{}, map[int64]ast.Expr{}}
	ast.PreOrderVisit(parsed.Expr(), ast.NewExprVisitor(func(e ast.Expr) {
		c.nodes[e.ID()] = e
		if e.Kind() != ast.CallKind {
			return
		}
		call := e.AsCall()
		for _, part := range append([]ast.Expr{call.Target()}, call.Args()...) {
			if part != nil {
				ast.PreOrderVisit(part, ast.NewExprVisitor(func(p ast.Expr) { c.above[p.ID()] = e }))
			}
		}
	}))
	unknown := map[int64]bool{} // calls of functions that do not exist
	for _, issue := range issues {
		if node := c.nodes[issue.ExprID]; node != nil && node.Kind() == ast.CallKind && undeclared.MatchString(issue.Message) {
			unknown[node.ID()] = true
		}
	}
	var faults []Fault
	for _, issue := range issues {
		// What stands inside the brackets of an unknown function may be right, if it is a misspelt macro; and what stands
		// before its dot may be a part of its name.
		if node := c.nodes[issue.ExprID]; node != nil && node.Kind() == ast.IdentKind && c.insideAny(node, unknown) {
			continue
		}
		faults = append(faults, src.fault(c.place(issue), "%s", c.message(issue)))
	}
	return sorted(faults)
}

// place is where an issue is: of a call the function's name, of which the parser notes the bracket.
func (c *checker) place(issue *common.Error) int {
	offset := c.src.at(issue.Location)
	if node := c.nodes[issue.ExprID]; node != nil && node.Kind() == ast.CallKind {
		return c.src.function(offset, node.AsCall().FunctionName())
	}
	return offset
}

func (c *checker) insideAny(node ast.Expr, calls map[int64]bool) bool {
	for above := c.above[node.ID()]; above != nil; above = c.above[above.ID()] {
		if calls[above.ID()] && (above.AsCall().Target() != node || c.isNamespace(node.AsIdent())) {
			return true
		}
	}
	return false
}

func (c *checker) message(issue *common.Error) string {
	node := c.nodes[issue.ExprID]
	if m := undeclared.FindStringSubmatch(issue.Message); m != nil && node != nil {
		return c.unknownName(node, m[1])
	}
	if m := noOverload.FindStringSubmatch(issue.Message); m != nil {
		return c.noOverload(node, m[1], m[2])
	}
	if m := mismatch.FindStringSubmatch(issue.Message); m != nil {
		return fmt.Sprintf("this must be %s, and is %s", typeNoun(m[1]), typeNoun(m[2]))
	}
	if m := noFields.FindStringSubmatch(issue.Message); m != nil {
		return fmt.Sprintf("%s has no fields", typeNoun(m[1]))
	}
	if m := noRange.FindStringSubmatch(issue.Message); m != nil {
		return fmt.Sprintf("%s is neither a list nor a map to go through", typeNoun(m[1]))
	}
	return otherMessage(issue.Message)
}

func (c *checker) unknownName(node ast.Expr, name string) string {
	if node.Kind() == ast.CallKind {
		if space := qualifier(node.AsCall()); c.isNamespace(space) && !strings.HasPrefix(name, space+".") {
			name = space + "." + name
		}
		return fmt.Sprintf("there is no function %q%s", name, nearest(name, c.functions()))
	}
	hint := nearest(name, variableNames())
	if hint == "" && isWord(name) && c.compared(node) {
		hint = fmt.Sprintf("; if it is text, put it in quotes: %q", name)
	}
	if hint == "" {
		hint = didYouMean(name, variableNames())
	}
	return fmt.Sprintf("there is no variable %q%s", name, hint)
}

// compared reports whether a name is an operand of a comparison, or in a list or brackets, where text is common.
func (c *checker) compared(node ast.Expr) bool {
	above := c.above[node.ID()]
	if above == nil {
		return false
	}
	switch above.AsCall().FunctionName() {
	case operators.Equals, operators.NotEquals, operators.In, operators.Index:
	default:
		if !above.AsCall().IsMemberFunction() {
			return false
		}
	}
	return slices.Contains(above.AsCall().Args(), node)
}

// qualifier is what stands before the dot of a call, if that is a name: math in math.abs(1).
func qualifier(call ast.CallExpr) string {
	if !call.IsMemberFunction() || call.Target().Kind() != ast.IdentKind {
		return ""
	}
	return call.Target().AsIdent()
}

// isNamespace reports whether functions have names that begin so: math in math.abs.
func (c *checker) isNamespace(name string) bool {
	return name != "" && slices.ContainsFunc(c.functions(), func(f string) bool { return strings.HasPrefix(f, name+".") })
}

// functions are the names of all functions and macros that users can write.
func (c *checker) functions() []string {
	names := []string{"cel.bind", "math.greatest", "math.least"}
	for name := range c.env.Functions() {
		if symbol(name) == name && !strings.ContainsAny(name, "@_$") {
			names = append(names, name)
		}
	}
	for _, macro := range c.env.Macros() {
		names = append(names, macro.Function())
	}
	slices.Sort(names)
	return names
}

// noOverload explains that a function or operator does not take what it is given.
func (c *checker) noOverload(node ast.Expr, function, signature string) string {
	target, list := "", signature
	if before, rest, ok := strings.Cut(signature, ".("); ok {
		target, list = before, "("+rest
	}
	args := arguments(strings.TrimSuffix(strings.TrimPrefix(list, "("), ")"))
	written := symbol(function)
	switch function {
	case operators.Equals, operators.NotEquals, operators.Less, operators.LessEquals, operators.Greater, operators.GreaterEquals:
		return fmt.Sprintf("%s and %s cannot be compared with %s%s", typeNoun(args[0]), typeNoun(args[1]), written, c.quoteHint(node))
	case operators.In:
		if item, ok := strings.CutPrefix(args[1], "list("); ok {
			return fmt.Sprintf("%s is never in this list, of which each item is %s", typeNoun(args[0]), typeNoun(strings.TrimSuffix(item, ")")))
		}
		return fmt.Sprintf("in needs a list or a map behind it, and this is %s", typeNoun(args[1]))
	case operators.LogicalNot, operators.Negate:
		return fmt.Sprintf("%s cannot be put before %s", written, typeNoun(args[0]))
	case operators.Index, operators.OptIndex:
		return fmt.Sprintf("nothing can be taken by %s out of %s", typeNoun(args[1]), typeNoun(args[0]))
	}
	if written != function && len(args) == 2 {
		return fmt.Sprintf("%s cannot be put between %s and %s", written, typeNoun(args[0]), typeNoun(args[1]))
	}
	return fmt.Sprintf("%s does not fit; there is %s", call(target, function, args), strings.Join(c.forms(function, target != ""), ", "))
}

// quoteHint is for a text that is compared with what is none.
func (c *checker) quoteHint(node ast.Expr) string {
	if node == nil || node.Kind() != ast.CallKind {
		return ""
	}
	for _, arg := range node.AsCall().Args() {
		text, at := literal([]ast.Expr{arg})
		switch {
		case at != nil && (text == "true" || text == "false"):
			return "; remove the quotes"
		case arg.Kind() == ast.LiteralKind && at == nil:
			return fmt.Sprintf("; is it meant as text: \"%v\"?", arg.AsLiteral().Value())
		}
	}
	return ""
}

// forms are the ways in which a function can be called, member calls first if one was tried.
func (c *checker) forms(function string, member bool) []string {
	var same, other []string
	if decl := c.env.Functions()[function]; decl != nil {
		for _, o := range decl.OverloadDecls() {
			var args []string
			for _, t := range o.ArgTypes() {
				args = append(args, t.String())
			}
			target := ""
			if o.IsMemberFunction() {
				target, args = args[0], args[1:]
			}
			form := call(target, function, args)
			if o.IsMemberFunction() == member {
				same = append(same, form)
			} else {
				other = append(other, form)
			}
		}
	}
	forms := append(same, other...)
	const most = 5
	if len(forms) > most {
		forms = append(forms[:most:most], "…")
	}
	return forms
}

func call(target, function string, args []string) string {
	text := function + "(" + strings.Join(args, ", ") + ")"
	if target != "" {
		text = target + "." + text
	}
	return strings.NewReplacer("<", "", ">", "", "google.protobuf.Duration", "duration", "google.protobuf.Timestamp", "timestamp", "kubernetes.", "").Replace(text)
}

// arguments splits "string, map(string, dyn)" at the commas outside of brackets.
func arguments(list string) []string {
	var args []string
	depth, start := 0, 0
	for i, r := range list {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth == 0:
			args = append(args, strings.TrimSpace(list[start:i]))
			start = i + 1
		}
	}
	return append(args, strings.TrimSpace(list[start:]))
}

// typeNoun is the name of a CEL type in plain words.
func typeNoun(t string) string {
	name, _, _ := strings.Cut(t, "(")
	switch name {
	case "bool":
		return "true or false"
	case "int", "uint":
		return "a whole number"
	case "double":
		return "a number with a fraction"
	case "string":
		return "text"
	case "bytes":
		return "bytes"
	case "null", "null_type":
		return "null"
	case "list":
		return "a list"
	case "map":
		return "a map"
	case "type":
		return "the name of a type"
	case "timestamp", "google.protobuf.Timestamp":
		return "a time"
	case "duration", "google.protobuf.Duration":
		return "a duration"
	case "kubernetes.Quantity":
		return "a quantity"
	case "optional_type":
		return "an optional value"
	case "dyn":
		return "any value"
	default:
		return t
	}
}
