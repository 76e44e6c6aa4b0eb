package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// TestFiltersPage loads what docs/filters.md shows of pipelines. Package expr evaluates the examples.
func TestFiltersPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/filters.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		if strings.HasPrefix(block[1], "# sample ") {
			continue
		}
		found++
		var file, part map[string]any
		if err := yaml.Unmarshal([]byte(minimal), &file); err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal([]byte(block[1]), &part); err != nil {
			t.Fatalf("%s%v", block[1], err)
		}
		if _, ok := part["enrich"]; ok {
			file["sources"].([]any)[0].(map[string]any)["resources"] = []string{"v1/events"}
		}
		if sources, ok := part["sources"]; ok {
			file["sources"] = sources
			delete(part, "sources")
		}
		pipeline := file["pipelines"].([]any)[0].(map[string]any)
		for key, value := range part {
			pipeline[key] = value
		}
		text, err := yaml.Marshal(file)
		if err != nil {
			t.Fatal(err)
		}
		_, warnings, err := Parse(text, "config.yaml", testOptions(nil))
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s%v\n%v", block[1], err, warnings)
		}
	}
	if found < 5 {
		t.Errorf("found %d blocks", found)
	}
	mistake := strings.Replace(minimal, "name: p,", `name: p, filters: [{expr: 'object.metadata.lables.app == "web"'}],`, 1)
	_, _, err = Parse([]byte(mistake), "config.yaml", testOptions(nil))
	if _, shown, _ := strings.Cut(messages(err), ": "); shown == "" || !strings.Contains(string(page), shown) {
		t.Errorf("the page does not show this mistake as it is reported:\n%s", shown)
	}
}

func messages(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
