package app

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apijson "k8s.io/apimachinery/pkg/util/json"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
)

// documentedKey is the key of the digests on the page.
const documentedKey = "the key of the documentation"

// TestDocumentedTransforms runs every example of docs/transforms.md: a block with transforms, and behind it the object
// that the page begins with as it is after them, or the error; or the fault of the configuration.
func TestDocumentedTransforms(t *testing.T) {
	page, err := os.ReadFile("../../../docs/transforms.md")
	if err != nil {
		t.Fatal(err)
	}
	var example map[string]string
	before, ran, keys := "", 0, map[string]bool{}
	for _, block := range regexp.MustCompile("(?ms)^```(\\S+) (\\S+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		kind, text := block[2], block[3]
		if kind == "before" {
			before = text
			continue
		}
		if kind == "transforms" {
			example = map[string]string{"before": before}
		}
		example[kind] = text
		switch kind {
		case "transforms":
			for _, key := range regexp.MustCompile(`(?m)^  - (\w+):`).FindAllStringSubmatch(text, -1) {
				keys[key[1]] = true
			}
		case "after", "error", "fault":
			ran++
			t.Run(fmt.Sprintf("%d", ran), func(t *testing.T) { runTransformExample(t, example) })
		default:
			t.Errorf("a block of an unknown kind: %s", kind)
		}
	}
	if ran < 7 || len(keys) != 5 {
		t.Errorf("ran %d examples of %v, want some of each key", ran, keys)
	}
}

func runTransformExample(t *testing.T, example map[string]string) {
	file := "cluster: c\nsources: [{name: s, resources: [v1/pods]}]\nsinks: [{name: out, stdout: {}}]\n" +
		"pipelines:\n- name: p\n  sink: out\n" + regexp.MustCompile(`(?m)^`).ReplaceAllString(example["transforms"], "  ")
	loaded, _, err := config.Parse([]byte(file), "config.yaml", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
	if fault, ok := example["fault"]; ok {
		got := regexp.MustCompile(`(?m)^config.yaml:\d+: `).ReplaceAllString(fmt.Sprint(err), "")
		if got != strings.TrimSuffix(fault, "\n") {
			t.Errorf("got:\n%s\nwant:\n%s", got, fault)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	object := readObject(t, example["before"])
	for _, transform := range transforms(loaded.Pipelines[0].Transforms, shape.NewRedactor([]byte(documentedKey), loaded.Cluster)) {
		if err = transform.Apply(t.Context(), object, podInput(object)); err != nil {
			break
		}
	}
	if want, ok := example["error"]; ok {
		if fmt.Sprint(err)+"\n" != want {
			t.Errorf("got error %v, want %s", err, want)
		}
		return
	}
	if want := readObject(t, example["after"]); err != nil || !reflect.DeepEqual(object, want) {
		got, _ := json.MarshalIndent(object, "", "  ")
		t.Errorf("got %s, %v, want:\n%s", got, err, example["after"])
	}
}

func readObject(t *testing.T, text string) map[string]any {
	t.Helper()
	var value, object map[string]any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	if err := apijson.Unmarshal(data, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

// podInput is a MODIFIED of a Pod whose previous version is not known.
type podInput map[string]any

func (p podInput) Object() (map[string]any, error)  { return p, nil }
func (podInput) OldObject() (map[string]any, error) { return nil, nil }
func (podInput) Type() string                       { return "MODIFIED" }
func (podInput) Ref() delta.Ref                     { return delta.Ref{Resource: podInput(nil).Resource(), Name: "web"} }
func (podInput) Snapshot() bool                     { return false }
func (podInput) Inferred() bool                     { return false }
func (podInput) ChangedBy() []map[string]string     { return nil }
func (podInput) Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}
