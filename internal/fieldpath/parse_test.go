package fieldpath

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func mustParse(t testing.TB, text string) Path {
	t.Helper()
	path, err := Parse(text)
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return path
}

func TestParse(t *testing.T) {
	for text, canonical := range map[string]string{
		"spec":                            "",
		"spec.template.spec":              "",
		"spec.containers[*].env[*].value": "",
		"a[0][12].b":                      "",
		`metadata.annotations["kubectl.kubernetes.io/last-applied-configuration"]`: "",
		`["a.b"].c`:                             "",
		`["spec"]["template"]`:                  "spec.template",
		`a['b']`:                                "a.b",
		`a['it\'s']`:                            `a["it's"]`,
		`a['"']`:                                `a["\""]`,
		`a["\u0041\/\u00e9"]`:                   `a["A/é"]`,
		`a["\ud83d\ude00"]`:                     `a["😀"]`,
		`a["\b\f\n\r\t\\\""]`:                   `a["\b\f\n\r\t\\\""]`,
		`a["0"]`:                                "",
		`a.0x`:                                  "",
		`a[""]`:                                 "",
		`a["*"]`:                                "",
		`a["größe"]`:                            "",
		"x_-9.Y":                                "",
		"a" + strings.Repeat("[0]", maxSteps-1): "",
	} {
		path, err := Parse(text)
		if err != nil {
			t.Errorf("Parse(%q): %v", text, err)
			continue
		}
		if canonical == "" {
			canonical = text
		}
		if got := path.String(); got != canonical {
			t.Errorf("Parse(%q): got %s, want %s", text, got, canonical)
		}
	}
}

func TestParseFaults(t *testing.T) {
	name := `a name such as spec (an item of a list is [0], every one [*], a name of digits ["0"])`
	end := `".", "[" or the end (a name with other characters than letters, digits, "_" and "-" stands in quotes, ["…"])`
	bracket := `*, a number or a name in quotes after "["`
	for text, want := range map[string]string{
		"":                                       name + " at the end",
		".spec":                                  name + ` at ".spec"`,
		"$.spec":                                 name + ` at "$.spec"`,
		"/spec/a":                                name + ` at "/spec/a"`,
		"spec..template":                         name + ` at ".template"`,
		"spec.":                                  name + " at the end",
		"spec.*":                                 name + ` at "*"`,
		"a.0":                                    name + ` at "0"`,
		"a.[0]":                                  name + ` at "[0]"`,
		"[0].a":                                  "a name such as spec at the beginning",
		"[*]":                                    "a name such as spec at the beginning",
		"a b":                                    end + ` at " b"`,
		"a[]":                                    bracket + ` at "]"`,
		"a[-1]":                                  bracket + ` at "-1]"`,
		"a[b.c]":                                 bracket + ` at "b.c]"`,
		"a[":                                     bracket + " at the end",
		"a[0":                                    `"]" at the end`,
		"a[*":                                    `"]" at the end`,
		"a[99999999999999999999]":                `a smaller number at "99999999999999999999]"`,
		`a["b]`:                                  `a quote that ends this one at "\"b]"`,
		`a["b"`:                                  `"]" at the end`,
		`a["\x"]`:                                `a name with the escapes of JSON at "\"\\x\"]"`,
		`a["\u12"]`:                              `a name with the escapes of JSON at "\"\\u12\"]"`,
		`a["\`:                                   `a quote that ends this one at "\"\\"`,
		`a["b"]c`:                                end + ` at "c"`,
		"a.b/c.d":                                end + ` at "/c.d"`,
		"a.\xff":                                 "UTF-8 text",
		"metadata.labels.app.kubernetes.io/name": end + ` at "/name"`,
		"a" + strings.Repeat(".a", maxSteps):     "a path of at most 64 steps",
	} {
		if _, err := Parse(text); fmt.Sprint(err) != "expected "+want {
			t.Errorf("Parse(%q): got %v, want expected %s", text, err, want)
		}
	}
}

func TestRelations(t *testing.T) {
	for _, test := range []struct {
		a, b                   string
		aCovers, bCovers, meet bool
	}{
		{"spec", "spec", true, true, true},
		{"spec", "spec.a", true, false, true},
		{"spec.a", "spec.b", false, false, false},
		{"a[*]", "a[0]", true, false, true},
		{"a[*].b", "a[0]", false, false, true},
		{"a[*]", "a.b", true, false, true},
		{"a[0]", "a[1]", false, false, false},
		{"a[0]", `a["0"]`, false, false, false},
		{"a[*].b", "a[0].c", false, false, false},
		{"a[0].b", "a[*].b.c", false, false, true},
	} {
		a, b := mustParse(t, test.a), mustParse(t, test.b)
		if a.Covers(b) != test.aCovers || b.Covers(a) != test.bCovers || a.Meets(b) != test.meet || b.Meets(a) != test.meet {
			t.Errorf("%s and %s: got covers %v and %v, meets %v and %v; want %v and %v, %v", a, b,
				a.Covers(b), b.Covers(a), a.Meets(b), b.Meets(a), test.aCovers, test.bCovers, test.meet)
		}
	}
}

// FuzzParse: what is a path has one canonical form.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"spec.template", `a["b.c"]['d'][0][*].e`, `a["\ud83d\ude00\n"]`, "spec..x", "a[", `a["`, "a.0", "größe"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(path.String())
		if err != nil || !slices.Equal(again.steps, path.steps) || again.String() != path.String() {
			t.Fatalf("%q became %s, and that %v, %v", text, path, again, err)
		}
	})
}
