package kafkatest

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/maven"
)

// pom pins Kafka's version and what it depends on.
//
//go:embed pom.xml
var pom string

func program() maven.Program { return maven.Program{Name: "kafka", POM: pom} }

// java is what is needed to run Kafka's programs.
type java struct {
	path      string
	classpath string
}

// Prepare fetches Kafka's jars unless they are in the user's cache. It belongs before the tests, in TestMain. If that
// cannot be done, it fails only where CI=true requires the real broker.
func Prepare(ctx context.Context, log io.Writer) error {
	err := program().Prepare(ctx, log)
	if err != nil && ctx.Err() == nil && os.Getenv("CI") != "true" {
		fmt.Fprintf(log, "no Kafka, a stand-in takes its place: %v\n", err)
		return nil
	}
	return err
}

// findJava looks for java and for what Prepare fetched.
func findJava() (*java, error) {
	path, classpath, err := program().Find()
	if err != nil {
		return nil, err
	}
	return &java{path: path, classpath: classpath}, nil
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
