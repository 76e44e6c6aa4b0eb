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
	step := func(at string) string {
		return fmt.Sprintf(`.name, [0], [*] or ["name"] at %q: a name with other characters than letters, digits, "_" and "-", or of digits alone, stands in brackets and quotes`, at)
	}
	for text, want := range map[string]string{
		"":                                       "a name such as spec at the beginning",
		".spec":                                  step(".spec"),
		"$.spec":                                 step("$.spec"),
		"/spec/a":                                step("/spec/a"),
		"spec..template":                         step("..template"),
		"spec.":                                  step("."),
		"spec.*":                                 step(".*"),
		"a.0":                                    step(".0"),
		"a.[0]":                                  step(".[0]"),
		"[0].a":                                  "a name such as spec at the beginning",
		"[*]":                                    "a name such as spec at the beginning",
		"a b":                                    step(" b"),
		"a[]":                                    step("[]"),
		"a[-1]":                                  step("[-1]"),
		"a[b.c]":                                 step("[b.c]"),
		"a[":                                     step("["),
		"a[0":                                    step("[0"),
		"a[*":                                    step("[*"),
		"a[99999999999999999999]":                step("[99999999999999999999]"),
		`a["b]`:                                  step(`["b]`),
		`a["b"`:                                  step(`["b"`),
		`a["\x"]`:                                `a name with the escapes of JSON at "[\"\\x\"]"`,
		`a["\u12"]`:                              `a name with the escapes of JSON at "[\"\\u12\"]"`,
		`a["\`:                                   step(`["\`),
		`a["b"]c`:                                step("c"),
		"a.b/c.d":                                step("/c.d"),
		"a.\xff":                                 "UTF-8 text",
		"metadata.labels.app.kubernetes.io/name": step("/name"),
		"a" + strings.Repeat(".a", maxSteps):     "a path of at most 64 steps",
	} {
		if _, err := Parse(text); fmt.Sprint(err) != "expected "+want {
			t.Errorf("Parse(%q): got %v, want expected %s", text, err, want)
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
