package fieldpath

import (
	"errors"
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

func TestParseOffsets(t *testing.T) {
	text := `spec.template["a.b"][*].c`
	path := mustParse(t, text)
	for i, want := range []string{"spec", "template", `["a.b"]`, "[*]", "c"} {
		if rest := text[path.Offset(i):]; !strings.HasPrefix(rest, want) {
			t.Errorf("step %d: got %q, want it to begin with %s", i, rest, want)
		}
	}
}

func TestParseFaults(t *testing.T) {
	for text, want := range map[string]struct {
		offset         int
		expected, hint string
	}{
		"":                                       {0, "a path such as spec.template", ""},
		".spec":                                  {0, "a name such as spec", "a path begins with a name, and its steps are separated by dots"},
		"$.spec":                                 {0, "a name such as spec", "a path begins with a name, and its steps are separated by dots"},
		"/spec/a":                                {0, "a name such as spec", "a path begins with a name, and its steps are separated by dots"},
		"spec..template":                         {5, `a name after "."`, ""},
		"spec.":                                  {5, `a name after "."`, ""},
		"spec.*":                                 {5, `a name after "."`, "every item of a list, or value of a map, is [*]"},
		"a.0":                                    {2, `a name after "."`, `write [0] for an item of a list, ["0"] for a name`},
		"a.[0]":                                  {2, `a name after "."`, `a "[" has no "." before it`},
		"[0].a":                                  {0, "a name such as spec", ""},
		"[*]":                                    {0, "a name such as spec", ""},
		"a b":                                    {1, `".", "[" or the end`, `write ["a b"]`},
		"a[]":                                    {2, `*, a number or a name in quotes after "["`, "[*] is every item"},
		"a[-1]":                                  {2, `*, a number or a name in quotes after "["`, "items are counted from the first, which is [0]"},
		"a[b.c]":                                 {2, `*, a number or a name in quotes after "["`, `write ["b.c"]`},
		"a[":                                     {2, `*, a number or a name in quotes after "["`, ""},
		"a[0":                                    {3, `"]"`, ""},
		"a[*":                                    {3, `"]"`, ""},
		"a[01]":                                  {2, "a number below 1000000000, without zeros before it", ""},
		"a[9999999999]":                          {2, "a number below 1000000000, without zeros before it", ""},
		`a["b]`:                                  {2, "a quote that ends this one", ""},
		`a["b"`:                                  {5, `"]"`, ""},
		`a["\x"]`:                                {3, `one of \" \' \\ \/ \b \f \n \r \t \u0000`, ""},
		`a["\u12"]`:                              {3, `one of \" \' \\ \/ \b \f \n \r \t \u0000`, ""},
		`a["\ud800x"]`:                           {3, `one of \" \' \\ \/ \b \f \n \r \t \u0000`, ""},
		`a["\`:                                   {3, `one of \" \' \\ \/ \b \f \n \r \t \u0000`, ""},
		`a["b"]c`:                                {6, `".", "[" or the end`, `other characters than letters, digits, "_" and "-" need quotes: ["…"]`},
		"a.b/c.d":                                {3, `".", "[" or the end`, `write a["b/c"].d`},
		"a.\xff":                                 {2, "UTF-8 text", ""},
		"metadata.labels.app.kubernetes.io/name": {33, `".", "[" or the end`, `write metadata.labels["app.kubernetes.io/name"]`},
		"a" + strings.Repeat(".a", maxSteps):     {2*maxSteps - 1, "the end: a path has at most 64 steps", ""},
	} {
		_, err := Parse(text)
		var fault *SyntaxError
		if !errors.As(err, &fault) {
			t.Errorf("Parse(%q): got %v, want a SyntaxError", text, err)
			continue
		}
		if fault.Offset != want.offset || fault.Expected != want.expected || fault.Hint != want.hint {
			t.Errorf("Parse(%q): got %+v, want %+v", text, *fault, want)
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

// FuzzParse: what is a path has one canonical form, and what is none has a place inside the text.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"spec.template", `a["b.c"]['d'][0][*].e`, `a["\ud83d\ude00\n"]`, "spec..x", "a[", `a["`, "a.0", "größe"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		path, err := Parse(text)
		var fault *SyntaxError
		switch {
		case err == nil:
			again, err := Parse(path.String())
			if err != nil || !again.Equal(path) || again.String() != path.String() {
				t.Fatalf("%q became %s, and that %v, %v", text, path, again, err)
			}
		case !errors.As(err, &fault) || fault.Offset < 0 || fault.Offset > len(text) || fault.Expected == "":
			t.Fatalf("%q: got %#v", text, err)
		}
	})
}
