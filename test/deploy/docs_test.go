package deploy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/internal/alerts"
)

// TestDocs: what the documentation shows works, and what it points to is there.
func TestDocs(t *testing.T) {
	root := filepath.Join("..", "..")
	for page, want := range map[string]int{"README.md": 1, "docs/kafka.md": 1, "docs/nats.md": 1, "docs/webhooks.md": 1, "docs/consumers.md": 1, "docs/recipes.md": 1} {
		if shown := checkConfigurations(t, page, read(t, filepath.Join(root, page))); shown != want {
			t.Errorf("%s shows %d whole configurations, want %d", page, shown, want)
		}
	}

	_, code, _ := strings.Cut(read(t, "verify_test.go"), "// verify is")
	if !strings.Contains(read(t, filepath.Join(root, "docs", "webhooks.md")), code) {
		t.Error("docs/webhooks.md shows another verify than verify_test.go has")
	}

	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	contents := read(t, filepath.Join(root, "docs", "README.md"))
	for _, page := range append(pages, filepath.Join(root, "README.md"), filepath.Join(root, "CHANGELOG.md"), filepath.Join(root, "CONTRIBUTING.md")) {
		name, err := filepath.Rel(root, page)
		if err != nil {
			t.Fatal(err)
		}
		if base := filepath.Base(page); filepath.Dir(name) == "docs" && base != "README.md" && !strings.Contains(contents, "]("+base+")") {
			t.Errorf("docs/README.md does not point to %s", base)
		}
		for n, part := range strings.Split(read(t, filepath.Join(root, name)), "](") {
			target, _, _ := strings.Cut(part, ")")
			if n == 0 || strings.HasPrefix(target, "https://") {
				continue
			}
			target, heading, _ := strings.Cut(target, "#")
			file := filepath.Join(root, filepath.Dir(name), target)
			if target == "" {
				file = filepath.Join(root, name)
			}
			if _, err := os.Stat(file); err != nil {
				t.Errorf("%s points to %s: %v", name, target, err)
			} else if heading != "" && !slices.Contains(headings(read(t, file)), heading) {
				t.Errorf("%s points to %s, which has no heading %q", name, target, heading)
			}
		}
	}
}

// checkConfigurations loads every configuration that a page shows, whole ones and those of a single sink, and returns the number of whole ones.
func checkConfigurations(t *testing.T, name, page string) (whole int) {
	t.Helper()
	const around = "cluster: c\nsources: [{name: s, resources: [v1/pods]}]\npipelines: [{name: p, sink: shown}]\nsinks:\n- name: shown\n"
	options := config.Options{Kinds: []sinks.Kind{kafka.Kind(), nats.Kind(), webhook.Kind()}}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		file := block[1]
		if strings.HasPrefix(file, "cluster: ") {
			whole++
		} else {
			file = around + regexp.MustCompile("(?m)^").ReplaceAllString(strings.TrimSuffix(file, "\n"), "  ")
		}
		if _, warnings, err := config.Parse([]byte(file), name, options); err != nil || len(warnings) > 0 {
			t.Errorf("a configuration in %s: %v %v\n%s", name, err, warnings, file)
		}
	}
	return whole
}

// headings returns the headings of a page, as links to them are written.
func headings(page string) (links []string) {
	for _, found := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(found[1]), "")
		links = append(links, strings.ReplaceAll(text, " ", "-"))
	}
	return links
}

// TestAlertsPage: docs/troubleshooting.md lists the rules of deploy/chart/files/alerts.yaml, and each points to its section there.
func TestAlertsPage(t *testing.T) {
	root := filepath.Join("..", "..")
	rules, err := alerts.Load(filepath.Join(root, "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	page := read(t, filepath.Join(root, "docs", "troubleshooting.md"))
	var want []string
	for _, rule := range rules {
		section := strings.ToLower(rule.Alert)
		want = append(want, fmt.Sprintf("| [`%s`](#%s) | %s |", rule.Alert, section, rule.Labels["severity"]))
		if !slices.Contains(headings(page), section) || !strings.HasSuffix(rule.Annotations["runbook_url"], "/docs/troubleshooting.md#"+section) {
			t.Errorf("%s has no heading in docs/troubleshooting.md, or its runbook_url is another one", rule.Alert)
		}
	}
	got := regexp.MustCompile("(?m)^\\| \\[`Kubeferry[^|]*\\|[^|]*\\|").FindAllString(page, -1)
	if !slices.Equal(got, want) {
		t.Errorf("docs/troubleshooting.md has\n%s\nthe rules are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestSecurityPage: the tests that docs/security.md names exist, in the packages that it names.
func TestSecurityPage(t *testing.T) {
	root := filepath.Join("..", "..")
	page := read(t, filepath.Join(root, "docs", "security.md"))
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	var tests map[string]bool // of the package that was named last
	named := map[string]int{}
	directory := ""
	for _, found := range regexp.MustCompile("`([a-z0-9/]+)`|\\b(Test[A-Z]\\w+)").FindAllStringSubmatch(page, -1) {
		if path := found[1]; path != "" {
			files, err := filepath.Glob(filepath.Join(root, path, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			if len(files) > 0 {
				directory, tests = path, map[string]bool{}
			}
			for _, file := range files {
				for _, match := range function.FindAllStringSubmatch(read(t, file), -1) {
					tests[match[1]] = true
				}
			}
			continue
		}
		named[directory]++
		if !tests[found[2]] {
			t.Errorf("docs/security.md names %s, which is not in %q", found[2], directory)
		}
	}
	if named["test/e2e"] < 10 || named["pipeline"] < 5 {
		t.Errorf("the page names %v tests", named)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
