package natstest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Prepare builds what [StartCluster] runs. It belongs before the tests, in TestMain.
func Prepare(ctx context.Context, log io.Writer) error { return programs.NATSServer().Build(ctx, log) }

// PrepareCLI builds what CLI runs.
func PrepareCLI(ctx context.Context, log io.Writer) error { return programs.NATSCLI().Build(ctx, log) }

// CLI runs the nats command against the servers, and returns what it printed to stdout.
func (a *access) CLI(ctx context.Context, args ...string) (string, error) {
	a.tb.Helper()
	path, err := programs.NATSCLI().Path()
	if err != nil {
		a.tb.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"--server", a.urls}, args...)...)
	// Its contexts and its cache belong to the test.
	cmd.Env = append(os.Environ(), "HOME="+a.tb.TempDir(), "XDG_CONFIG_HOME="+a.tb.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("nats %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
