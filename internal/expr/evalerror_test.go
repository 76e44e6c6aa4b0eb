package expr

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// TestEvalErrors: what fails is said with its place, and without anything of the object. Every text and key of the
// object holds "secret".
func TestEvalErrors(t *testing.T) {
	in := &input{typ: "ADDED", object: map[string]any{
		"a": "secret-a", "b": "sec(ret-b", "n": int64(41414141), "zero": int64(0), "big": int64(1<<63 - 1), "flag": true, "f": 0.414141,
		"list": []any{"secret-l", int64(41414141)}, "empty": []any{}, "mixed": []any{int64(41414141), "secret-m"},
		"map": map[string]any{"secret-key": "secret-v"}, "metadata": map[string]any{"labels": map[string]any{"x": "secret-x"}},
	}}
	for text, want := range map[string]string{
		`object.metadata.labels.app == "x"`:                        `1:24: there is no field "app"; ask with has(object.metadata.labels.app) first`,
		`object.spec.x.y == 1`:                                     `1:8: there is no field "spec"; ask with has(object.spec) first`,
		`object.a.x == 1`:                                          `1:10: there is no field "x"; ask with has(object.a.x) first`,
		`oldObject.spec == 1`:                                      `1:11: there is no field "spec"; ask with has(oldObject.spec) first`,
		`object.list.exists(x, x.foo == 1)`:                        `1:25: there is no field "foo"; ask with has(x.foo) first`,
		`object.map[object.a] == 1`:                                `1:11: there is no such key or index`,
		`object[object.a] == 3`:                                    `1:7: there is no such key or index`,
		`object.list[7] == 1`:                                      `1:12: there is no such key or index`,
		`object.list[object.n] == 1`:                               `1:12: there is no such key or index`,
		`{object.a: 1}[object.b] == 2`:                             `1:14: there is no such key or index`,
		`int(object.a) == 3`:                                       `1:1: int() has no result for this value`,
		`double(object.a) == 3.0`:                                  `1:1: double() has no result for this value`,
		`bool(object.a)`:                                           `1:1: bool() has no result for this value`,
		`object.n / object.zero == 3`:                              `1:10: division by zero`,
		`object.n % object.zero == 3`:                              `1:10: modulus by zero`,
		`object.big + object.big == 3`:                             `1:12: integer overflow`,
		`timestamp(object.a) == timestamp("2020-01-01T00:00:00Z")`: `1:1: timestamp() has no result for this value`,
		`duration(object.a) > duration("1s")`:                      `1:1: duration() has no result for this value`,
		`quantity(object.a) == quantity("1")`:                      `1:1: not a quantity`,
		`quantity(string(object.f)).asInteger() == object.n`:       `1:28: not a whole number that fits 64 bits`,
		`ip(object.a) == ip("1.1.1.1")`:                            `1:1: ip() has no result for this value`,
		`cidr(object.a) == cidr("1.1.1.1/8")`:                      `1:1: cidr() has no result for this value`,
		`object.a.matches(object.b)`:                               `1:10: matches() has no result for this value`,
		`object.a.find(object.b) == ""`:                            `1:10: find() has no result for this value`,
		`object.a.substring(object.n) == ""`:                       `1:10: substring() has no result for this value`,
		`object.a.charAt(object.n) == ""`:                          `1:10: charAt() has no result for this value`,
		`"%d".format([object.a]) == ""`:                            `1:6: format() has no result for this value`,
		`object.mixed.join() == ""`:                                `1:14: join() has no result for this value`,
		`object.mixed.sort() == []`:                                `1:14: sort() has no result for this value`,
		`object.mixed.sum() == 1`:                                  `1:14: sum() has no result for this value`,
		`object.list.sum() == 1`:                                   `1:13: sum() has no result for this value`,
		`object.mixed.max() == 1`:                                  `1:14: max() has no result for this value`,
		`object.empty.max() == 1`:                                  `1:14: the list is empty`,
		`lists.range(object.n) == []`:                              `1:1: lists.range() has no result for this value`,
		`lists.range(object.n * 1000).size() == 1`:                 `1:1: lists.range() has no result for this value`,
		`object.list.slice(object.n, 3) == []`:                     `1:13: slice() has no result for this value`,
		`math.greatest(object.list) == 1`:                          `1:14: math.greatest() has no result for this value`,
		`object.a + 5 > 3`:                                         `1:10: + does not take values of these types`,
		`-object.a == 1`:                                           `1:1: a function or operator does not take a value of this type`,
		`object.a < 3`:                                             `1:10: < does not take values of these types`,
		`object.a in object.b`:                                     `1:10: in does not take values of these types`,
		`object.a && true`:                                         `1:10: && needs true or false`,
		`!object.a`:                                                `1:1: ! needs true or false`,
		`object.a ? true : false`:                                  `1:10: ? : needs true or false`,
		`object.a`:                                                 `1:1: the result is neither true nor false`,
		`object.n.matches("^a")`:                                   `1:1: a function or operator does not take a value of this type`,
		`object.n.startsWith("a")`:                                 `1:10: startsWith() has no result for this value`,
		`object.list.exists(x, x.startsWith("a"))`:                 `1:25: startsWith() has no result for this value`,
		`object.?nope.value() == object.a`:                         `1:14: value() has no result for this value`,
		`object.map[object.a].foo == 1`:                            `1:21: there is no such field, key or index`,
		`object.a[object.nope] == 1`:                               `1:17: there is no field "nope"; ask with has(object.nope) first`,
		`object.metadata.annotations["x"] == "y"`:                  `1:17: there is no field "annotations"; ask with has(object.metadata.annotations) first`,
	} {
		p := compile(t, text, Filter)
		got, err := p.Eval(context.Background(), in)
		var failed *EvalError
		if !errors.As(err, &failed) || got != nil {
			t.Errorf("%s: got %v, %v, want an EvalError", text, got, err)
			continue
		}
		if want := "expression, at " + want; want != "expression, at " && err.Error() != want {
			t.Errorf("%s\ngot:  %v\nwant: %s", text, err, want)
		}
		for _, value := range []string{"secret", "ret-b", "4141"} {
			if strings.Contains(err.Error(), value) {
				t.Errorf("%s: the error holds a value of the object: %v", text, err)
			}
		}
		checkPlace(t, text, Fault{failed.Offset, failed.Line, failed.Column, failed.Reason})
	}
}
