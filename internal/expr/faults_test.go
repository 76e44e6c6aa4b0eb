package expr

import (
	"errors"
	"strings"
	"testing"
)

// TestFaults: what is wrong is reported with its place: by cel-go, or by this package where cel-go's type check takes it.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		text string
		want string // a line for each fault
	}{
		// Syntax: the first mistake.
		{"", `1:1: the expression is empty`},
		{" \n", `1:1: the expression is empty`},
		{`object.a = 5 && type = "x"`, `1:10: Syntax error: token recognition error at: '= '`},
		{`object.items.exists(x, x.a = 3)`, `1:28: Syntax error: token recognition error at: '= '`},
		{`object.x and snapshot`, `1:10: Syntax error: mismatched input 'and' expecting <EOF>`},
		{`not snapshot`, `1:5: Syntax error: extraneous input 'snapshot' expecting <EOF>`},
		{`object.a == "x`, `1:13: Syntax error: token recognition error at: '"x'`},
		{`object.a == “x”`, `1:13: Syntax error: token recognition error at: '“'`},
		{`"\q" == type`, `1:1: Syntax error: token recognition error at: '"\q'`},
		{`object.x.`, `1:10: Syntax error: no viable alternative at input '.'`},
		{`object.x &&`, `1:12: Syntax error: mismatched input '<EOF>'`},
		{`(object.x`, `1:10: Syntax error: missing ')' at '<EOF>'`},
		{`object.x)`, `1:9: Syntax error: extraneous input ')' expecting <EOF>`},
		{`object?.x`, `1:10: Syntax error: mismatched input '<EOF>' expecting ':'`},
		{`object.spec.in == 3`, `1:13: Syntax error: no viable alternative at input '.in'`},
		{`has(object)`, `1:5: invalid argument to has() macro`},
		{`object.é == objct.y`, `1:8: Syntax error: token recognition error at: 'é'`},
		{strings.Repeat("!(", 300) + "snapshot" + strings.Repeat(")", 300), `1:1: expression recursion limit exceeded: 50`},
		{"object" + strings.Repeat(".a", 9000) + " == 1", `1:1: max recursion depth exceeded`},
		{strings.Repeat("a", 30000), `1:1: expression code point size exceeds limit: size: 30000, limit 20000`},
		// Names.
		{`type == ADDED`, `1:9: undeclared reference to 'ADDED'`},
		{`Object.kind == "x"`, `1:1: undeclared reference to 'Object' (did you mean 'object'?)`},
		{"object.x ==\n  objct.y", `2:3: undeclared reference to 'objct' (did you mean 'object'?)`},
		{`"é" == objct.y`, `1:8: undeclared reference to 'objct' (did you mean 'object'?)`},
		{`object.a.startWith("x")`, `1:19: undeclared reference to 'startWith' (did you mean 'startsWith'?)`},
		{`object.items.exist([1])`, `1:19: undeclared reference to 'exist' (did you mean 'exists'?)`},
		{`objct.x && oldObjct.y`, "1:1: undeclared reference to 'objct' (did you mean 'object'?)\n1:12: undeclared reference to 'oldObjct' (did you mean 'oldObject'?)"},
		{`resource.kind == "x"`, `1:10: resource has no field "kind"; there are: group, version, resource`},
		{`resource["kind"] == "x"`, `1:11: resource has no field "kind"; there are: group, version, resource`},
		{`object.metadata.nme == "x"`, `1:17: metadata has no field "nme"; did you mean "name"?`},
		{`has(oldObject.metadata.label)`, `1:24: metadata has no field "label"; did you mean "labels"?`},
		{`object.metadata.?lables.x.orValue(1) == 1`, `1:18: metadata has no field "lables"; did you mean "labels"?`},
		{`object.?metadata.?lables.hasValue()`, `1:19: metadata has no field "lables"; did you mean "labels"?`},
		{`object.metadata["lables"].x == 1`, `1:18: metadata has no field "lables"; did you mean "labels"?`},
		{`object.metadata[?"lables"].hasValue()`, `1:19: metadata has no field "lables"; did you mean "labels"?`},
		{`has(object["metadata"].lables)`, `1:24: metadata has no field "lables"; did you mean "labels"?`},
		{`object.?metadata["lables"].orValue("") == ""`, `1:19: metadata has no field "lables"; did you mean "labels"?`},
		{`object.items.exists(object, object.a)`, `1:20: "object" is a variable already; give the items another name`},
		// Types.
		{`type == 5`, `1:6: found no matching overload for '_==_' applied to '(string, int)'`},
		{`object.x && "a"`, `1:13: expected type 'bool' but found 'string'`},
		{`type in [1]`, `1:6: found no matching overload for '@in' applied to '(string, list(int))'`},
		{`type.startsWith(5)`, `1:16: found no matching overload for 'startsWith' applied to 'string.(int)'`},
		{`snapshot.x`, `1:9: type 'bool' does not support field selection`},
		{`snapshot.exists(x, x)`, `1:1: expression of type 'bool' cannot be range of a comprehension (must be list, map, or dynamic)`},
		{`"x"`, `1:1: a filter must be true or false, and this is a string; has the YAML around it taken the quotes away?`},
		{`size(object.spec)`, `1:1: a filter must be true or false, and this is of type int`},
		// Constants.
		{`type == "ADD"`, `1:9: type is never "ADD"; it is one of ADDED, MODIFIED, DELETED`},
		{`"modified" != type`, `1:1: type is never "modified"; it is one of ADDED, MODIFIED, DELETED`},
		{`type in ["ADDED", "DELETE"]`, `1:19: type is never "DELETE"; it is one of ADDED, MODIFIED, DELETED`},
		{`object.a.matches("(")`, "1:18: error parsing regexp: missing closing ): `(`"},
		{`matches(object.a, "(")`, "1:19: error parsing regexp: missing closing ): `(`"},
		{`object.a.findAll("[", 3) == []`, "1:18: error parsing regexp: missing closing ]: `[`"},
		{`quantity("3x") == quantity("1")`, `1:10: "3x" is not a quantity such as 500m, 2 or 1Gi`},
		{`timestamp("today") < timestamp(object.t)`, `1:11: "today" is not a time such as 2026-11-21T00:12:03Z`},
		{`duration("a day") < duration(object.d)`, `1:10: "a day" is not a duration such as 1h30m or 10s`},
		{`type == "ADDED" && type == "DELETED"`, `1:1: is never true: nothing would pass`},
		{`false && object.x`, `1:1: is never true: nothing would pass`},
		{`1 / 0 == 3`, `1:1: has no result, whatever the object is`},
		{`lists.range(1000000).all(x, lists.range(1000000).size() > 1)`, `1:1: has no result, whatever the object is`},
		{`lists.range(1000000000).size() > 0 && type == "ADDED"`, `1:1: is false or has no result, whatever the object is`},
	} {
		p, err := Compile(tc.text, Filter)
		var faults Faults
		if !errors.As(err, &faults) || p != nil {
			t.Errorf("%s\ngot %v, %v, want faults", tc.text, p, err)
			continue
		}
		if faults.Error() != tc.want {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", tc.text, faults, tc.want)
		}
		for _, fault := range faults {
			checkPlace(t, tc.text, fault)
		}
	}
}

func TestValueFaults(t *testing.T) {
	for text, want := range map[string]string{
		`type(object.x)`:           `1:1: JSON has no form for the name of a type`,
		`object.?metadata.?labels`: `1:1: JSON has no form for an optional value; end it with .orValue(…)`,
		`1 / 0`:                    `1:1: has no result, whatever the object is`,
		`objct.metadata.name`:      `1:1: undeclared reference to 'objct' (did you mean 'object'?)`,
	} {
		if p, err := Compile(text, Value); err == nil || err.Error() != want {
			t.Errorf("%s\ngot:  %v, %v\nwant: %s", text, p, err, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	for text, want := range map[string]string{
		`object.metdata.name == "x"`:         `1:8: objects seldom have a field "metdata"; did you mean "metadata"?`,
		`has(object.stat) && object.stat.ok`: `1:12: objects seldom have a field "stat"; did you mean "state"?` + "\n" + `1:28: objects seldom have a field "stat"; did you mean "state"?`,
		`true`:                               `1:1: is always true: everything passes`,
		`type in ["ADDED", "MODIFIED", "DELETED"] || object.x`: `1:1: is always true: everything passes`,
		`object.metadata.name == "x"`:                          "",
		`object.widgets == 3`:                                  "",
		`[1, 2].exists(x, object.spec.replicas == x)`:          "",
	} {
		p, err := Compile(text, Filter)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := Faults(p.Warnings()).Error(); got != want {
			t.Errorf("%s\ngot:\n%s\nwant:\n%s", text, got, want)
		}
	}
}

// checkPlace compares the two ways in which a fault names its place.
func checkPlace(t *testing.T, text string, f Fault) {
	t.Helper()
	if f.Offset < 0 || f.Offset > len(text) || f.Message == "" {
		t.Fatalf("%q: no place in the text, or no message: %+v", text, f)
	}
	before := text[:f.Offset]
	line := strings.Count(before, "\n") + 1
	column := len([]rune(before[strings.LastIndexByte(before, '\n')+1:])) + 1
	if f.Line != line || f.Column != column {
		t.Errorf("%q: got %d:%d at offset %d, want %d:%d", text, f.Line, f.Column, f.Offset, line, column)
	}
}
