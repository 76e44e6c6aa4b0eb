package deploy_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/webhook"
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

	for _, name := range []string{
		"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/filters.md", "docs/formats.md", "docs/operations.md",
		"docs/performance.md", "docs/security.md", "docs/sinks.md", "docs/transforms.md",
	} {
		for n, part := range strings.Split(read(t, filepath.Join(root, name)), "](") {
			target, _, _ := strings.Cut(part, ")")
			target, _, _ = strings.Cut(target, "#")
			if n == 0 || strings.HasPrefix(target, "https://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(name), target)); err != nil {
				t.Errorf("%s points to %s: %v", name, target, err)
			}
		}
	}
}

// TestSecurityPage: the tests that docs/security.md names exist.
func TestSecurityPage(t *testing.T) {
	root := filepath.Join("..", "..")
	tests := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, path), -1) {
			tests[found[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(read(t, filepath.Join(root, "docs", "security.md")), -1)
	if len(named) < 20 {
		t.Errorf("the page names %d tests", len(named))
	}
	for _, name := range named {
		if !tests[name] {
			t.Errorf("docs/security.md names %s, which is not there", name)
		}
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
