package expr

import (
	"errors"
	"strings"
	"testing"
)

// TestFaults: what is wrong is said in plain words and with its place.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		text string
		want string // a line for each fault
	}{
		// Syntax.
		{"", `1:1: the expression is empty`},
		{" \n", `1:1: the expression is empty`},
		{`object.a = 5`, `1:10: = does not compare; write ==`},
		{`object.a = 5 && type = "x"`, "1:10: = does not compare; write ==\n1:22: = does not compare; write =="},
		{`object.items.exists(x, x.a = 3)`, `1:28: = does not compare; write ==`},
		{`type === "A"`, `1:8: there is no ===; write ==`},
		{`type =! "ADDED"`, `1:6: there is no =!; write !=`},
		{`type =~ "A.*"`, `1:6: there is no =~; write object.field.matches("…")`},
		{`type <> "A"`, `1:7: there is no <>; write !=`},
		{`object.x and snapshot`, `1:10: write && for and`},
		{`object.x & snapshot`, `1:10: write && for and`},
		{`object.x or snapshot`, `1:10: write || for or`},
		{`object.x | snapshot`, `1:10: write || for or`},
		{`not snapshot`, `1:5: write ! for not`},
		{`object.a == 'x`, `1:13: the text that begins here has no closing '`},
		{`object.a == "x`, `1:13: the text that begins here has no closing "`},
		{`object.a == “x”`, "1:13: this quote is not one that the language knows; write \" or '\n1:15: this quote is not one that the language knows; write \" or '"},
		{`"\q" == type`, `1:1: this text holds \q, which stands for nothing; write \\q, or put an r before the text: r"\q"`},
		{`object.x.`, `1:10: a name is missing behind the dot`},
		{`object.x &&`, `1:12: the expression ends too early`},
		{`(object.x`, `1:10: a ")" is missing here`},
		{`object.x)`, `1:9: this ) closes nothing`},
		{`object.x; type`, `1:9: an expression is one; join conditions with && or ||`},
		{`object.x ?? 3`, `1:11: there is no ??; write object.?field.orValue(…)`},
		{`object?.x`, `1:10: there is no ?.; write .? before a field that may be absent`},
		{`object.a ? b`, `1:13: a condition with ? needs : and a second value`},
		{`object.spec.in == 3`, `1:13: "in" is a word of the language; as a field write it ["in"]`},
		{`has(object)`, `1:5: has() takes a field, as in has(object.metadata.labels)`},
		{`$.x`, `1:1: the character $ has no meaning here`},
		{`object.metadata.?lables.x.orValue(1) == 1`, `1:18: metadata has no field "lables"; did you mean "labels"?`},
		{`object.?metadata.?lables.hasValue()`, `1:19: metadata has no field "lables"; did you mean "labels"?`},
		{`object.metadata["lables"].x == 1`, `1:18: metadata has no field "lables"; did you mean "labels"?`},
		{`object.metadata[?"lables"].hasValue()`, `1:19: metadata has no field "lables"; did you mean "labels"?`},
		{`has(object["metadata"].lables)`, `1:24: metadata has no field "lables"; did you mean "labels"?`},
		{`object.?metadata["lables"].orValue("") == ""`, `1:19: metadata has no field "lables"; did you mean "labels"?`},
		// What cannot be true together.
		{`object.metadata.namespace == "a" && object.metadata.namespace == "b"`, `1:63: is never true beside the other condition for object.metadata.namespace, which has one value: nothing would pass`},
		{`object.a == 1 && snapshot && (2 == object["a"])`, `1:33: is never true beside the other condition for object.a, which has one value: nothing would pass`},
		// What fails and what is false.
		{`lists.range(1000000000).size() > 0 && type == "ADDED"`, `1:1: is false or has no result, whatever the object is`},
		{`lists.range(100000).map(i, lists.range(100000)).size() > 0 && type == "ADDED"`, `1:1: takes more than 1000000 steps, whatever the object is`},
		// Names.
		{`type == ADDED`, `1:9: there is no variable "ADDED"; if it is text, put it in quotes: "ADDED"`},
		{`object.metadata.labels[app] == "x"`, `1:24: there is no variable "app"; if it is text, put it in quotes: "app"`},
		{`Object.kind == "x"`, `1:1: there is no variable "Object"; did you mean "object"?`},
		{`obj.kind == "x"`, `1:1: there is no variable "obj"; did you mean "object"?`},
		{`foo.bar == 3`, `1:1: there is no variable "foo"; there are: object, oldObject, type, resource, snapshot, inferred`},
		{"object.x ==\n  objct.y", `2:3: there is no variable "objct"; did you mean "object"?`},
		{`object.é == objct.y`, `1:8: the character é has no meaning here`},
		{`"é" == objct.y`, `1:8: there is no variable "objct"; did you mean "object"?`},
		{`object.a.startWith("x")`, `1:10: there is no function "startWith"; did you mean "startsWith"?`},
		{`object.items.exist(x, x.a == 3)`, `1:14: there is no function "exist"; did you mean "exists"?`},
		{`math.greates(1, 2) == 2`, `1:6: there is no function "math.greates"; did you mean "math.greatest"?`},
		{`foo.bar(3)`, "1:1: there is no variable \"foo\"; there are: object, oldObject, type, resource, snapshot, inferred\n1:5: there is no function \"bar\""},
		{`objct.x && oldObjct.y`, "1:1: there is no variable \"objct\"; did you mean \"object\"?\n1:12: there is no variable \"oldObjct\"; did you mean \"oldObject\"?"},
		{`resource.kind == "x"`, `1:10: resource has no field "kind"; there are: group, version, resource`},
		{`resource.resorce == "x"`, `1:10: resource has no field "resorce"; did you mean "resource"?`},
		{`object.metadata.nme == "x"`, `1:17: metadata has no field "nme"; did you mean "name"?`},
		{`has(oldObject.metadata.label)`, `1:24: metadata has no field "label"; did you mean "labels"?`},
		{`object.items.exists(object, object.a)`, `1:20: "object" is a variable already; give what this goes through another name`},
		// Types.
		{`type == 5`, `1:6: text and a whole number cannot be compared with ==; is it meant as text: "5"?`},
		{`snapshot == "true"`, `1:10: true or false and text cannot be compared with ==; remove the quotes`},
		{`type + 5 == ""`, `1:6: + cannot be put between text and a whole number`},
		{`object.x && "a"`, `1:13: this must be true or false, and is text`},
		{`!type`, `1:1: ! cannot be put before text`},
		{`type in "ADDED"`, `1:6: in needs a list or a map behind it, and this is text`},
		{`type in [1]`, `1:6: text is never in this list, of which each item is a whole number`},
		{`type.startsWith(5)`, `1:6: string.startsWith(int) does not fit; there is string.startsWith(string)`},
		{`snapshot.x`, `1:9: true or false has no fields`},
		{`snapshot.exists(x, x)`, `1:1: true or false is neither a list nor a map to go through`},
		{`"x"`, `1:1: a filter must be true or false, and this is text; has the YAML around it taken the quotes away?`},
		{`size(object.spec)`, `1:1: a filter must be true or false, and this is a whole number`},
		// Constants.
		{`type == "ADD"`, `1:9: type is never "ADD"; did you mean "ADDED"?`},
		{`"modified" != type`, `1:1: type is never "modified"; did you mean "MODIFIED"?`},
		{`type in ["ADDED", "DELETE"]`, `1:19: type is never "DELETE"; did you mean "DELETED"?`},
		{`object.a.matches("(")`, `1:18: not a regular expression: missing closing ): (`},
		{`object.a.findAll("[", 3) == []`, `1:18: not a regular expression: missing closing ]: [`},
		{`quantity("3x") == quantity("1")`, `1:10: "3x" is not a quantity such as 500m, 2 or 1Gi`},
		{`timestamp("today") < timestamp(object.t)`, `1:11: "today" is not a time such as 2026-11-21T00:12:03Z`},
		{`duration("a day") < duration(object.d)`, `1:10: "a day" is not a duration such as 1h30m or 10s`},
		{`type == "ADDED" && type == "DELETED"`, `1:25: is never true beside the other condition for type, which has one value: nothing would pass`},
		{`false && object.x`, `1:1: is never true: nothing would pass`},
		{strings.Repeat("!(", 300) + "snapshot" + strings.Repeat(")", 300), `1:1: the expression is nested too deeply`},
		{"object" + strings.Repeat(".a", 9000) + " == 1", `1:1: the expression is nested too deeply`},
		{strings.Repeat("a", 30000), `1:1: the expression is longer than 20000 characters`},
		{`lists.range(1000000).all(x, lists.range(1000000).size() > 1)`, `1:1: takes more than 1000000 steps, whatever the object is`},
		{`1 / 0 == 3`, `1:1: has no result, whatever the object is`},
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
		`type(object.x)`:           `1:1: this is the name of a type, which JSON has no form for`,
		`object.?metadata.?labels`: `1:1: this is an optional value, which JSON has no form for; end it with .orValue(…)`,
		`{1: object.x}`:            `1:1: this holds a map whose keys are not text, which JSON has no form for`,
		`[{"a": {true: 1}}]`:       `1:1: this holds a map whose keys are not text, which JSON has no form for`,
		`dyn({1: 2})`:              `1:1: the result holds a map whose keys are not text`,
		`[optional.none()]`:        `1:1: the result is an optional value; end it with .orValue(…)`,
		`1 / 0`:                    `1:1: has no result, whatever the object is`,
		`objct.metadata.name`:      `1:1: there is no variable "objct"; did you mean "object"?`,
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
