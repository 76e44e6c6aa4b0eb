package expr

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const page = "../../docs/filters.md"

var block = regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$")

// sample is a change that the page's examples are tried on.
type sample struct {
	input
	gvr schema.GroupVersionResource
}

func (s *sample) Resource() schema.GroupVersionResource { return s.gvr }

func readSample(t *testing.T, text string) *sample {
	t.Helper()
	var raw struct {
		Type, Resource    string
		Snapshot          bool
		Object, OldObject map[string]any `yaml:",omitempty"`
	}
	var all map[string]any
	if err := yaml.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		t.Fatal(err)
	}
	decoded := func(m map[string]any) map[string]any { // whole numbers as in Unstructured
		if m == nil {
			return nil
		}
		data, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return object(t, string(data))
	}
	s := &sample{input: input{object: decoded(raw.Object), old: decoded(raw.OldObject), typ: raw.Type, snapshot: raw.Snapshot}}
	parts := strings.Split(raw.Resource, "/")
	s.gvr = schema.GroupVersionResource{Version: parts[len(parts)-2], Resource: parts[len(parts)-1]}
	if len(parts) == 3 {
		s.gvr.Group = parts[0]
	}
	return s
}

// TestFiltersPage tries every example of docs/filters.md on the changes that the page shows.
func TestFiltersPage(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	samples := map[string]*sample{}
	tried := 0
	blocks := block.FindAllStringSubmatch(string(text), -1)
	for _, found := range blocks { // they stand behind the examples
		first, _, _ := strings.Cut(found[2], "\n")
		if name, ok := strings.CutPrefix(first, "# sample "); ok {
			samples[name] = readSample(t, found[2])
		}
	}
	for _, found := range blocks {
		if found[1] != "cel" {
			continue
		}
		for _, text := range strings.Split(found[2], "\n\n") {
			tried++
			checkExample(t, text, samples)
		}
	}
	_, err = compile(t, `object.metadata.labels.app == "web"`, Filter).Pass(context.Background(), samples["pod"])
	if err == nil || !strings.Contains(string(text), "\n"+err.Error()+"\n") {
		t.Errorf("the page does not show this error: %v", err)
	}
	if tried < 25 || len(samples) != 4 {
		t.Errorf("found %d examples and %d changes", tried, len(samples))
	}
}

// example is a comment with the names of the changes for which it is true, and of those on which it fails.
var example = regexp.MustCompile(`^// .*\[(.*?)(?:; fails: (.*))?\]\n`)

func checkExample(t *testing.T, text string, samples map[string]*sample) {
	p, err := Compile(text, Filter)
	stated := example.FindStringSubmatch(text)
	if err != nil || stated == nil {
		t.Errorf("%s%v, or no results", text, err)
		return
	}
	want := map[string]string{}
	for result, names := range map[string]string{"true": stated[1], "fails": stated[2]} {
		for _, name := range strings.FieldsFunc(names, func(r rune) bool { return strings.ContainsRune(", ", r) }) {
			want[name] = result
			if samples[name] == nil {
				t.Errorf("%s: no change named %q", text, name)
			}
		}
	}
	for name, in := range samples {
		pass, err := p.Pass(context.Background(), in)
		got := fmt.Sprint(pass)
		var failed *EvalError
		if errors.As(err, &failed) {
			got = "fails"
		} else if err != nil {
			t.Error(err)
		}
		if want := cmp.Or(want[name], "false"); got != want {
			t.Errorf("%s: %s is %s, the page says %s (%v)", text, name, got, want, err)
		}
	}
}
