package deploy_test

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLogTexts: the log lines that end-to-end tests wait for are in the code. Most of these tests run rarely: one that waits for a line which has
// another text now would fail much later.
func TestLogTexts(t *testing.T) {
	root := filepath.Join("..", "..")
	var code strings.Builder
	for _, directory := range []string{"cmd", "internal", "pipeline", "sinks", "source"} {
		err := filepath.WalkDir(filepath.Join(root, directory), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				code.WriteString(read(t, path))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	tests, err := filepath.Glob(filepath.Join(root, "test", "e2e", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	waited := 0
	for _, file := range tests {
		for _, found := range regexp.MustCompile(`Logged\([^"\n]*"([^"]+)"`).FindAllStringSubmatch(read(t, file), -1) {
			if waited++; !strings.Contains(code.String(), found[1]) {
				t.Errorf("%s waits for the log line %q, which nothing writes", filepath.Base(file), found[1])
			}
		}
	}
	if waited < 50 {
		t.Errorf("%d log lines are waited for", waited)
	}
}
