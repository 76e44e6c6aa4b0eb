package kafkatest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/cache"
)

// pom pins Kafka's version and what it depends on.
//
//go:embed pom.xml
var pom string

// java is what is needed to run Kafka's programs.
type java struct {
	path      string
	classpath string
}

// Prepare fetches Kafka's jars unless they are in the user's cache. It belongs before the tests, in TestMain. If that
// cannot be done, it fails only where CI=true requires the real broker.
func Prepare(ctx context.Context, log io.Writer) error {
	err := prepare(ctx, log)
	if err != nil && ctx.Err() == nil && os.Getenv("CI") != "true" {
		fmt.Fprintf(log, "no Kafka, a stand-in takes its place: %v\n", err)
		return nil
	}
	return err
}

func prepare(ctx context.Context, log io.Writer) error {
	if _, err := exec.LookPath("java"); err != nil {
		return err
	}
	_, err := cache.Dir(ctx, log, jars(), func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "fetching Apache Kafka, 45 MB\n")
		return fetch(ctx, dir)
	})
	return err
}

// jars is the name of the jars in the cache.
func jars() string {
	digest := sha256.Sum256([]byte(pom))
	return "kafka/" + hex.EncodeToString(digest[:])[:12]
}

// findJava looks for java and for what Prepare fetched.
func findJava() (*java, error) {
	path, err := exec.LookPath("java")
	if err != nil {
		return nil, err
	}
	dir, err := cache.Find(jars())
	if err != nil {
		return nil, fmt.Errorf("the jars of Kafka are missing, run `make assets`: %w", err)
	}
	return &java{path: path, classpath: filepath.Join(dir, "*")}, nil
}

func fetch(ctx context.Context, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return err
	}
	project, err := os.MkdirTemp("", "kubeferry-kafka-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(project) }()
	if err := os.WriteFile(filepath.Join(project, "pom.xml"), []byte(pom), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mvn, "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DoutputDirectory="+dir)
	cmd.Dir = project
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

// run runs one of Kafka's command line tools to its end and returns what it printed.
func (j *java) run(ctx context.Context, class string, args ...string) (string, error) {
	args = append([]string{"-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", j.classpath, class}, args...)
	cmd := exec.CommandContext(ctx, j.path, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", class, err, strings.TrimSpace(string(out)+stderr.String()))
	}
	return string(out), nil
}
