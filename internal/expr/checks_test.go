package expr

import (
	"strings"
	"testing"
)

// TestFaults: what is wrong is reported with its place: by cel-go, or by this package where cel-go's type check takes it.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		text string
		want string // a line for each fault
	}{
		// Syntax.
		{`object.a = 5 && type = "x"`, "1:10: Syntax error: token recognition error at: '= '\n1:12: Syntax error: mismatched input '5' expecting <EOF>\n1:22: Syntax error: token recognition error at: '= '"},
		{`object.x and snapshot`, `1:10: Syntax error: mismatched input 'and' expecting <EOF>`},
		{`not snapshot`, `1:5: Syntax error: extraneous input 'snapshot' expecting <EOF>`},
		{`object.x.`, `1:10: Syntax error: no viable alternative at input '.'`},
		{`object.x &&`, `1:12: Syntax error: mismatched input '<EOF>'`},
		{`(object.x`, `1:10: Syntax error: missing ')' at '<EOF>'`},
		{`object.x)`, `1:9: Syntax error: extraneous input ')' expecting <EOF>`},
		{`object?.x`, `1:10: Syntax error: mismatched input '<EOF>' expecting ':'`},
		{`has(object)`, `1:5: invalid argument to has() macro`},
		{strings.Repeat("!(", 300) + "snapshot" + strings.Repeat(")", 300), `-1:0: expression recursion limit exceeded: 50`},
		{"object" + strings.Repeat(".a", 9000) + " == 1", `-1:0: max recursion depth exceeded`},
		{strings.Repeat("a", 30000), `-1:0: expression code point size exceeds limit: size: 30000, limit 20000`},
		// Names.
		{`type == ADDED`, `1:9: undeclared reference to 'ADDED'`},
		{`Object.kind == "x"`, `1:1: undeclared reference to 'Object' (did you mean 'object'?)`},
		{"object.x ==\n  objct.y", `2:3: undeclared reference to 'objct' (did you mean 'object'?)`},
		{`"é" == objct.y`, `1:8: undeclared reference to 'objct' (did you mean 'object'?)`},
		{`object.a.startWith("x")`, `1:19: undeclared reference to 'startWith' (did you mean 'startsWith'?)`},
		{`object.items.exist([1])`, `1:19: undeclared reference to 'exist' (did you mean 'exists'?)`},
		{`objct.x && oldObjct.y`, "1:1: undeclared reference to 'objct' (did you mean 'object'?)\n1:12: undeclared reference to 'oldObjct' (did you mean 'oldObject'?)"},
		{`object.metadata.nme == "x"`, `1:16: metadata has no field "nme"; did you mean "name"?`},
		{`has(oldObject.metadata.label)`, `1:4: metadata has no field "label"; did you mean "labels"?`},
		{`object.metadata.?lables.x.orValue(1) == 1`, `1:16: metadata has no field "lables"; did you mean "labels"?`},
		{`object.?metadata.?lables.hasValue()`, `1:17: metadata has no field "lables"; did you mean "labels"?`},
		{`object.metadata["lables"].x == 1`, `1:16: metadata has no field "lables"; did you mean "labels"?`},
		{`object.metadata[?"lables"].hasValue()`, `1:16: metadata has no field "lables"; did you mean "labels"?`},
		{`has(object["metadata"].lables)`, `1:4: metadata has no field "lables"; did you mean "labels"?`},
		{`object.?metadata["lables"].orValue("") == ""`, `1:17: metadata has no field "lables"; did you mean "labels"?`},
		{`object.items.exists(object, object.a)`, `1:20: "object" is a variable already; give the items another name`},
		// Types.
		{`type == 5`, `1:6: found no matching overload for '_==_' applied to '(string, int)'`},
		{`object.x && "a"`, `1:13: expected type 'bool' but found 'string'`},
		{`type in [1]`, `1:6: found no matching overload for '@in' applied to '(string, list(int))'`},
		{`type.startsWith(5)`, `1:16: found no matching overload for 'startsWith' applied to 'string.(int)'`},
		{`snapshot.x`, `1:9: type 'bool' does not support field selection`},
		{`snapshot.exists(x, x)`, `1:1: expression of type 'bool' cannot be range of a comprehension (must be list, map, or dynamic)`},
		{`"x"`, `1:1: a filter must be true or false, and this is of type string`},
		{`size(object.spec)`, `1:5: a filter must be true or false, and this is of type int`},
		// Constants.
		{`object.a.matches("(")`, "cannot be evaluated: error parsing regexp: missing closing ): `(`"},
		{`matches(object.a, "(")`, "cannot be evaluated: error parsing regexp: missing closing ): `(`"},
		{`object.a.findAll("[", 3) == []`, "cannot be evaluated: error parsing regexp: missing closing ]: `[`"},
		{`quantity("3x") == quantity("1")`, `1:10: not a quantity such as 500m, 2 or 1Gi`},
		{`timestamp("today") < timestamp(object.t)`, `1:11: invalid timestamp argument`},
		{`duration("a day") < duration(object.d)`, `1:10: invalid duration argument`},
	} {
		if got := faults(Compile(tc.text, Filter)); got != tc.want {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", tc.text, got, tc.want)
		}
	}
}

func TestValueFaults(t *testing.T) {
	for text, want := range map[string]string{
		`type(object.x)`:           `1:5: JSON has no form for the name of a type`,
		`object.?metadata.?labels`: `1:17: JSON has no form for an optional value; end it with .orValue(…)`,
		`objct.metadata.name`:      `1:1: undeclared reference to 'objct' (did you mean 'object'?)`,
	} {
		if got := faults(Compile(text, Value)); got != want {
			t.Errorf("%s\ngot:  %s\nwant: %s", text, got, want)
		}
	}
}

// faults are the lines of a Compile's error that do not show the expression, without the tokens that the parser would take.
func faults(p *Program, err error) string {
	if err == nil || p != nil {
		return "none"
	}
	var lines []string
	for line := range strings.Lines(err.Error()) {
		if !strings.HasPrefix(line, " |") {
			line, _, _ = strings.Cut(line, " expecting {")
			lines = append(lines, strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "ERROR: <input>:"))
		}
	}
	return strings.Join(lines, "\n")
}
