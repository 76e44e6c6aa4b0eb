package expr

import (
	"fmt"
	"testing"

	"cel.dev/cel-go/cel"
)

// TestGuardKeepsResults: a call that is charged before it runs has the result of the call that it replaces.
func TestGuardKeepsResults(t *testing.T) {
	env, err := newEnv()
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
	var expressions []string
	add := func(format string, args ...any) { expressions = append(expressions, fmt.Sprintf(format, args...)) }
	for _, a := range values {
		for _, b := range values {
			add("dyn(%s) == dyn(%s)", a, b)
			add("dyn(%s) != dyn(%s)", a, b)
		}
		for _, l := range lists {
			add("dyn(%s) in dyn(%s)", a, l)
			add("dyn(%s).indexOf(dyn(%s))", l, a)
			add("dyn(%s).lastIndexOf(dyn(%s))", l, a)
		}
		add(`dyn(%s) in dyn({"a": 1, 1: 2})`, a)
	}
	for _, a := range lists {
		for _, b := range lists {
			for _, f := range []string{"contains", "equivalent", "intersects"} {
				add("sets.%s(dyn(%s), dyn(%s))", f, a, b)
			}
			for _, f := range []string{"hasAll", "hasAny", "hasOnly", "hasExactly"} {
				add("dyn(%s).%s(dyn(%s))", a, f, b)
			}
		}
		for _, f := range []string{"distinct", "isSorted", "min", "max", "flatten", "sort", "sum", "reverse"} {
			add("dyn(%s).%s()", a, f)
		}
		add(`"%%s".format([dyn(%s)])`, a)
	}
	for _, a := range texts {
		add("[%s, %s].join()", a, a)
		for _, b := range texts {
			add("%s.replace(%s, %s)", a, b, a)
			add("%s.replace(%s, %s, 1)", a, b, a)
			add("[%s, %s].join(%s)", a, a, b)
			add("%s.find(dyn(%s))", a, b)
			add("dyn(%s).matches(dyn(%s))", a, b)
			for _, f := range []string{"indexOf", "lastIndexOf"} {
				add("%s.%s(%s)", a, f, b)
				for i := range 8 {
					add("%s.%s(%s, %d)", a, f, b, i-1)
				}
			}
		}
	}
	vars := map[string]any{"object": map[string]any{}}
	for _, text := range expressions {
		checked, issues := env.Compile(text)
		if issues.Err() != nil {
			t.Fatalf("%s: %v", text, issues.Err())
		}
		result := func(options ...cel.ProgramOption) string {
			program, err := env.Program(checked, options...)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			v, _, err := program.Eval(vars)
			if err != nil {
				return "error"
			}
			value, reason := plain(v)
			return fmt.Sprintf("%T %v %s", v.Value(), value, reason)
		}
		want := result(cel.EvalOptions(cel.OptOptimize))
		got := result(cel.EvalOptions(cel.OptOptimize), cel.CostLimit(costLimit), cel.CostTracking(newSizeCosts()), cel.CustomDecoratorV2(guard(env)))
		if got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}
