package expr

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestEvalErrors: an error names the place in the expression, and quotes nothing of the object, where every text and key
// contains "secret".
func TestEvalErrors(t *testing.T) {
	in := &input{typ: "ADDED", object: map[string]any{
		"a": "secret-a", "b": "sec(ret-b", "n": int64(41414141), "zero": int64(0), "big": int64(1<<63 - 1), "flag": true, "f": 0.414141,
		"list": []any{"secret-l", int64(41414141)}, "empty": []any{}, "mixed": []any{int64(41414141), "secret-m"},
		"map": map[string]any{"secret-key": "secret-v"}, "metadata": map[string]any{"labels": map[string]any{"x": "secret-x"}},
	}}
	for text, want := range map[string]string{
		`object.metadata.labels.app == "x"`:                        `1:23: there is no field "app"; check with has(object.metadata.labels.app) first`,
		`object.spec.x.y == 1`:                                     `1:7: there is no field "spec"; check with has(object.spec) first`,
		`object.a.x == 1`:                                          `1:9: there is no field "x"; check with has(object.a.x) first`,
		`oldObject.spec == 1`:                                      `1:10: there is no field "spec"; check with has(oldObject.spec) first`,
		`object.list.exists(x, x.foo == 1)`:                        `1:24: there is no field "foo"; check with has(x.foo) first`,
		`object.map[object.a] == 1`:                                `1:11`,
		`object[object.a] == 3`:                                    `1:7`,
		`object.list[7] == 1`:                                      `1:12`,
		`object.list[object.n] == 1`:                               `1:12`,
		`{object.a: 1}[object.b] == 2`:                             `1:14`,
		`int(object.a) == 3`:                                       `1:4`,
		`double(object.a) == 3.0`:                                  `1:7`,
		`bool(object.a)`:                                           `1:5`,
		`object.n / object.zero == 3`:                              `1:10`,
		`object.n % object.zero == 3`:                              `1:10`,
		`object.big + object.big == 3`:                             `1:12`,
		`timestamp(object.a) == timestamp("2020-01-01T00:00:00Z")`: `1:10`,
		`duration(object.a) > duration("1s")`:                      `1:9`,
		`quantity(object.a) == quantity("1")`:                      `1:9`,
		`quantity(string(object.f)).asInteger() == object.n`:       `1:37`,
		`ip(object.a) == ip("1.1.1.1")`:                            `1:3`,
		`cidr(object.a) == cidr("1.1.1.1/8")`:                      `1:5`,
		`object.a.matches(object.b)`:                               `1:17`,
		`object.a.find(object.b) == ""`:                            `1:14`,
		`object.a.find(object.n) == ""`:                            `1:14`,
		`object.a.substring(object.n) == ""`:                       `1:19`,
		`object.a.charAt(object.n) == ""`:                          `1:16`,
		`"%d".format([object.a]) == ""`:                            `1:12`,
		`object.mixed.join() == ""`:                                `1:18`,
		`object.mixed.sort() == []`:                                `1:18`,
		`object.mixed.sum() == 1`:                                  `1:17`,
		`object.list.sum() == 1`:                                   `1:16`,
		`object.mixed.max() == 1`:                                  `1:17`,
		`object.empty.max() == 1`:                                  `1:17`,
		`lists.range(object.n) == []`:                              `1:12`,
		`lists.range(object.n * 1000).size() == 1`:                 `1:12`,
		`object.list.slice(object.n, 3) == []`:                     `1:18`,
		`math.greatest(object.list) == 1`:                          `1:14`,
		`object.a + 5 > 3`:                                         `1:10`,
		`-object.a == 1`:                                           `1:11`,
		`object.a < 3`:                                             `1:10`,
		`object.a in object.b`:                                     `1:10`,
		`object.a && true`:                                         `1:10`,
		`!object.a`:                                                `1:1`,
		`object.a ? true : false`:                                  `1:10`,
		`object.a`:                                                 `1:7: the result is neither true nor false`,
		`object.n.matches("^a")`:                                   `1:17`,
		`object.n.startsWith("a")`:                                 `1:20`,
		`object.list.exists(x, x.startsWith("a"))`:                 `1:35`,
		`object.?nope.value() == object.a`:                         `1:19`,
		`object.map[object.a].foo == 1`:                            `1:21`,
		`object.a[object.nope] == 1`:                               `1:16: there is no field "nope"; check with has(object.nope) first`,
		`object.metadata.annotations["x"] == "y"`:                  `1:16: there is no field "annotations"; check with has(object.metadata.annotations) first`,
	} {
		p := compile(t, text, Filter)
		got, err := p.Pass(context.Background(), in)
		var failed *EvalError
		if !errors.As(err, &failed) || got {
			t.Errorf("%s: got %v, %v, want an EvalError", text, got, err)
			continue
		}
		if !strings.Contains(want, " ") {
			want += ": there is no result: a value is absent, or is not of the type or form that is needed here"
		}
		if want := "expression, at " + want; err.Error() != want {
			t.Errorf("%s\ngot:  %v\nwant: %s", text, err, want)
		}
		for _, value := range []string{"secret", "ret-b", "4141"} {
			if strings.Contains(err.Error(), value) {
				t.Errorf("%s: the error holds a value of the object: %v", text, err)
			}
		}
	}
}
