package kafkatest

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// findJava looks for java and fetches Kafka's jars unless they are in the user's cache.
func findJava(ctx context.Context, log io.Writer) (*java, error) {
	path, err := exec.LookPath("java")
	if err != nil {
		return nil, err
	}
	m := regexp.MustCompile(`<kafka\.version>(.+)</kafka\.version>`).FindStringSubmatch(pom)
	if m == nil {
		return nil, errors.New("pom.xml has no kafka.version")
	}
	digest := sha256.Sum256([]byte(pom))
	name := fmt.Sprintf("kafka/%s-%s", m[1], hex.EncodeToString(digest[:])[:12])
	jars, err := cache.Dir(ctx, log, name, func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "fetching Apache Kafka %s, 45 MB, once\n", m[1])
		return fetch(ctx, dir)
	})
	if err != nil {
		return nil, err
	}
	return &java{path: path, classpath: filepath.Join(jars, "*")}, nil
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
