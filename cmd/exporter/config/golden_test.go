package config

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// secretValue must never be in any message.
const secretValue = "hunter2:s3cr3t/x"

func goldenEnv() map[string]string {
	return map[string]string{
		"SECRET": secretValue, "NUMBER": "7", "SHORT": "q", "EMPTY": "", "NAME": "out-x", "POD": "v1/pods", "MAPPING": "{a: b}",
	}
}

// TestBadFiles reads each file of testdata/bad and compares its faults and warnings.
func TestBadFiles(t *testing.T) {
	paths, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(paths) < 15 {
		t.Fatalf("found %d files, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			_, warnings, err := Parse(data, "config.yaml", testOptions(goldenEnv()))
			var b strings.Builder
			for _, w := range warnings {
				fmt.Fprintln(&b, "warning:", w)
			}
			if err != nil {
				fmt.Fprintln(&b, err)
			}
			got := b.String()
			for _, value := range []string{secretValue, "hunter2", "s3cr3t", "out-x"} {
				if strings.Contains(got, value) {
					t.Errorf("a message holds %q, which came from the environment:\n%s", value, got)
				}
			}
			golden := strings.TrimSuffix(path, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}
