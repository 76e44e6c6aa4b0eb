package examples_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
)

// TestConsumersPage: what docs/consumers.md shows is in the examples of each language, there are tests for each rule, and the tests that it names exist.
func TestConsumersPage(t *testing.T) {
	root := filepath.Join("..", "..")
	page := read(t, filepath.Join(root, "docs", "consumers.md"))
	var examples []string
	for _, file := range []string{"python/store.py", "go/store/store.go", "java/KafkaTable.java"} {
		examples = append(examples, squeeze(read(t, filepath.Join(root, "examples", filepath.FromSlash(file)))))
	}
	shared := 0
	for _, code := range sqlBlocks(page) {
		if strings.HasPrefix(code, "DELETE") { // expectStored runs the one that cleans up
			continue
		}
		shared++
		for _, example := range examples {
			if !strings.Contains(example, squeeze(code)) {
				t.Errorf("%.70s… has not:\n%s", example, code)
			}
		}
	}
	if shared != 4 {
		t.Errorf("%d statements are compared with the examples, want 4", shared)
	}

	tests := map[string]bool{}
	for _, pattern := range []string{"consume/*_test.go", "test/*/*_test.go"} {
		files, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, found := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(read(t, file), -1) {
				tests[found[1]] = true
			}
		}
	}
	named := regexp.MustCompile("`(Test\\w+)`")
	for _, found := range named.FindAllStringSubmatch(page, -1) {
		if !tests[found[1]] {
			t.Errorf("there is no %s", found[1])
		}
	}
	_, rules, _ := strings.Cut(page, "## A table of what exists")
	rules, _, _ = strings.Cut(rules, "\n## ")
	items := regexp.MustCompile(`(?m)^\d\. `).Split(rules, -1)[1:]
	rows := regexp.MustCompile(`(?m)^\| \d: .*$`).FindAllString(page, -1)
	if len(items) != 4 || len(rows) != len(items) {
		t.Errorf("%d rules, and tests of %d, want 4", len(items), len(rows))
	}
	for _, row := range rows {
		if !named.MatchString(row) {
			t.Errorf("a rule names no test: %s", row)
		}
	}
}

// TestFormatsPage: the whole records that docs/formats.md shows are as docs/schema describes them.
func TestFormatsPage(t *testing.T) {
	page := read(t, filepath.Join("..", "..", "docs", "formats.md"))
	forms := map[string]int{}
	for _, found := range regexp.MustCompile("(?ms)^```json\n({\"(?:specversion|id)\".*?)^```$").FindAllStringSubmatch(page, -1) {
		names, err := asyncapi.Check("lines", asyncapi.Message{Body: []byte(found[1])})
		if err != nil {
			t.Errorf("%v:\n%s", err, found[1])
		}
		for _, name := range names {
			forms[name]++
		}
	}
	if forms["cloudevents"] != 3 || forms["json"] != 1 {
		t.Errorf("the page shows %v", forms)
	}
}

// TestExamplesAreShort: no file has more than 150 lines, be it a program or what the programs of a language share.
func TestExamplesAreShort(t *testing.T) {
	files := 0
	for _, pattern := range []string{"go/*/*.go", "python/*.py", "java/*.java"} {
		found, err := filepath.Glob(filepath.Join("..", "..", "examples", filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range found {
			files++
			if n := strings.Count(read(t, file), "\n"); n > 150 {
				t.Errorf("%s has %d lines", file, n)
			}
		}
	}
	if files != 9 {
		t.Errorf("%d files, want 9", files)
	}
}

// sqlBlocks returns the statements that a page shows.
func sqlBlocks(page string) (blocks []string) {
	for _, found := range regexp.MustCompile("(?ms)^```sql\n(.*?)^```$").FindAllStringSubmatch(page, -1) {
		blocks = append(blocks, found[1])
	}
	return blocks
}

// sqlBlock returns the statement of docs/consumers.md that begins with a text.
func sqlBlock(t *testing.T, beginning string) string {
	t.Helper()
	for _, code := range sqlBlocks(read(t, filepath.Join("..", "..", "docs", "consumers.md"))) {
		if strings.HasPrefix(code, beginning) {
			return code
		}
	}
	t.Fatalf("docs/consumers.md has no %s", beginning)
	return ""
}

// squeeze makes one blank of any.
func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
