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
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/internal/alerts"
)

// TestDocs: what the documentation shows works, and what it points to is there.
func TestDocs(t *testing.T) {
	root := filepath.Join("..", "..")
	readme := read(t, filepath.Join(root, "README.md"))
	_, file, found := strings.Cut(readme, "```yaml\n")
	file, _, closed := strings.Cut(file, "```")
	if !found || !closed {
		t.Fatal("README.md shows no configuration")
	}
	_, warnings, err := config.Parse([]byte(file), "README.md", config.Options{Kinds: []sinks.Kind{kafka.Kind(), webhook.Kind()}})
	if err != nil || len(warnings) > 0 {
		t.Errorf("the configuration in README.md: %v %v", err, warnings)
	}

	_, code, _ := strings.Cut(read(t, "verify_test.go"), "// verify is")
	if !strings.Contains(read(t, filepath.Join(root, "docs", "sinks.md")), code) {
		t.Error("docs/sinks.md shows another verify than verify_test.go has")
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

// headings returns the headings of a page, as links to them are written.
func headings(page string) (links []string) {
	for _, found := range regexp.MustCompile("(?m)^#+ (.*)$").FindAllStringSubmatch(page, -1) {
		text := regexp.MustCompile(`[^a-z0-9_ -]`).ReplaceAllString(strings.ToLower(found[1]), "")
		links = append(links, strings.ReplaceAll(text, " ", "-"))
	}
	return links
}

// TestAlertsPage: docs/operations.md lists the rules of deploy/chart/files/alerts.yaml.
func TestAlertsPage(t *testing.T) {
	root := filepath.Join("..", "..")
	rules, err := alerts.Load(filepath.Join(root, "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, rule := range rules {
		row := fmt.Sprintf("| `%s` | `%s` |", rule.Alert, rule.Expr)
		if rule.For > 0 {
			row = fmt.Sprintf("| `%s` | `%s` for %v |", rule.Alert, rule.Expr, rule.For)
		}
		want = append(want, row)
	}
	page := read(t, filepath.Join(root, "docs", "operations.md"))
	for _, rule := range rules {
		if !strings.Contains(page, "\n### "+rule.Alert+"\n") || !strings.HasSuffix(rule.Annotations["runbook_url"], "/docs/operations.md#"+strings.ToLower(rule.Alert)) {
			t.Errorf("%s has no heading in docs/operations.md, or its runbook_url is another one", rule.Alert)
		}
	}
	got := regexp.MustCompile("(?m)^\\| `Kubeferry[^|]*\\|[^|]*\\|").FindAllString(page, -1)
	if !slices.Equal(got, want) {
		t.Errorf("docs/operations.md has\n%s\nthe rules are\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
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
