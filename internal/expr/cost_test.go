package expr

import (
	"errors"
	"fmt"
	"testing"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types/ref"
)

// TestGuardKeepsResults: a guarded call has the result of the call that it replaces.
func TestGuardKeepsResults(t *testing.T) {
	env, err := newEnv(Filter, cel.Variable("a", cel.DynType), cel.Variable("b", cel.DynType))
	if err != nil {
		t.Fatal(err)
	}
	values := []string{
		`null`, `true`, `false`, `1`, `1u`, `1.0`, `1.5`, `-1`, `0.0`, `-0.0`, `double("NaN")`, `9007199254740993`, `9007199254740992.0`,
		`18446744073709551615u`, `double("Infinity")`, `""`, `"a"`, `"1"`, `b"a"`, `[]`, `[1]`, `[1.0]`, `[[1], "a"]`, `{}`, `{"a": 1}`, `{"a": 1.0}`,
		`{"a": [1]}`, `{1: 1}`, `optional.none()`, `optional.of(1)`, `optional.of([1.0])`, `duration("1s")`, `timestamp("2026-01-01T00:00:00Z")`,
		`quantity("1")`, `quantity("1000m")`, `type(1)`, `ip("10.0.0.1")`,
	}
	lists := []string{
		`[]`, `[dyn(1), "a", null, 2.0]`, `[2, 1, 1.0, 1u]`, `[[1], [1.0], []]`, `["b", "a", "b"]`, `[double("NaN"), double("NaN")]`,
		`[9007199254740993, 9007199254740992.0, 1]`, `[{"a": 1}, {"a": 1.0}]`, `[quantity("1"), quantity("1000m")]`, `[true, false, true]`,
	}
	texts := []string{`""`, `"a"`, `"aä"`, `"äaä"`, `"ababab"`, `"ab"`, `"日本日"`}
	// Compiling takes most of the time: each operand and each call, of the variables a and b, is compiled once.
	operands := map[string]ref.Val{}
	operand := func(text string) ref.Val {
		v, ok := operands[text]
		if !ok {
			v = evaluated(t, env, text)
			operands[text] = v
		}
		return v
	}
	type pair struct{ plain, guarded cel.Program }
	calls := map[string]pair{}
	compare := func(call string, args ...string) {
		t.Helper()
		p, ok := calls[call]
		if !ok {
			checked := checked(t, env, call)
			var err, guardedErr error
			p.plain, err = env.Program(checked, cel.EvalOptions(cel.OptOptimize))
			p.guarded, guardedErr = env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit), cel.CostTracking(newCosts()), cel.CustomDecoratorV2(guard(env, costLimit)))
			if err := errors.Join(err, guardedErr); err != nil {
				t.Fatalf("%s: %v", call, err)
			}
			calls[call] = p
		}
		vars := map[string]any{"object": map[string]any{}}
		for i, arg := range args {
			vars[[]string{"a", "b"}[i]] = operand(arg)
		}
		result := func(program cel.Program) string {
			v, _, err := program.Eval(vars)
			if err != nil {
				return "error"
			}
			value, reason := plain(v)
			return fmt.Sprintf("%T %v %s", v.Value(), value, reason)
		}
		if want, got := result(p.plain), result(p.guarded); got != want {
			t.Errorf("%s of %s: got %s, want %s", call, args, got, want)
		}
	}
	for _, a := range values {
		for _, b := range values {
			compare("a == b", a, b)
			compare("a != b", a, b)
		}
		for _, l := range lists {
			compare("a in b", a, l)
			compare("b.indexOf(a)", a, l)
			compare("b.lastIndexOf(a)", a, l)
		}
		compare(`a in dyn({"a": 1, 1: 2})`, a)
	}
	for _, a := range lists {
		for _, b := range lists {
			for _, f := range []string{"contains", "equivalent", "intersects"} {
				compare("sets."+f+"(a, b)", a, b)
			}
			for _, f := range []string{"hasAll", "hasAny", "hasOnly", "hasExactly"} {
				compare("a."+f+"(b)", a, b)
			}
		}
		for _, f := range []string{"distinct", "flatten", "sort"} {
			compare("a."+f+"()", a)
		}
		compare(`"%s".format([a])`, a)
	}
	for _, a := range texts {
		compare("[a, a].join()", a)
		for _, b := range texts {
			compare("a.replace(b, a)", a, b)
			compare("a.replace(b, a, 1)", a, b)
			compare("[a, a].join(b)", a, b)
			compare("a.find(b)", a, b)
			compare("a.matches(b)", a, b)
			for _, f := range []string{"indexOf", "lastIndexOf"} {
				compare("a."+f+"(b)", a, b)
				for i := range 8 {
					compare(fmt.Sprintf("a.%s(b, %d)", f, i-1), a, b)
				}
			}
		}
	}
	if len(calls) < 30 {
		t.Errorf("only %d calls were compared", len(calls))
	}
}

// checked returns an expression that has no faults.
func checked(t *testing.T, env *cel.Env, text string) *cel.Ast {
	t.Helper()
	ast, issues := env.Compile(text)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", text, issues.Err())
	}
	return ast
}

// evaluated returns the value of an expression without variables.
func evaluated(t *testing.T, env *cel.Env, text string) ref.Val {
	t.Helper()
	program, err := env.Program(checked(t, env, text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	v, _, err := program.Eval(map[string]any{})
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}
