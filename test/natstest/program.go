package natstest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/cache"
)

// program is one that is built from a Go module and kept in the user's cache directory.
type program struct {
	name, pkg string
	// module is the directory, below that of the test module, whose go.mod and go.sum pin what is built.
	module string
}

var (
	natsServer = program{"nats-server", "github.com/nats-io/nats-server/v2", "."}
	natsCLI    = program{"nats", "github.com/nats-io/natscli/nats", "natstest/assets/natscli"}
)

// path builds the program unless it is there.
func (p program) path(ctx context.Context, tb testing.TB) string {
	tb.Helper()
	path, err := p.build(ctx, testLog{tb})
	if err != nil {
		tb.Fatalf("build %s: %v", p.name, err)
	}
	return path
}

func (p program) build(ctx context.Context, log testLog) (string, error) {
	// Asked for, because a test binary built with -trimpath does not know where its source is.
	root, err := goCommand(ctx, ".", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeferry/kubeferry/test")
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, filepath.FromSlash(p.module))
	// What decides what is built: the version of the package's module and of all that it needs.
	versions, err := goCommand(ctx, module, "list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}", p.pkg)
	if err != nil {
		return "", err
	}
	digest := sha256.Sum256([]byte(runtime.Version() + "\n" + versions))
	name := fmt.Sprintf("nats/%s-%s-%s-%s", p.name, runtime.GOOS, runtime.GOARCH, hex.EncodeToString(digest[:])[:12])
	dir, err := cache.Dir(ctx, log, name, func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "building %s, half a minute, once\n", p.name)
		_, err := goCommand(ctx, module, "build", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, p.name), p.pkg)
		return err
	})
	return filepath.Join(dir, p.name), err
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// testLog writes lines to a test's log.
type testLog struct{ tb testing.TB }

func (l testLog) Write(b []byte) (int, error) {
	l.tb.Helper()
	l.tb.Logf("%s", bytes.TrimRight(b, "\n"))
	return len(b), nil
}

// CLI runs the nats command against the servers, and returns what it printed to stdout.
func (a *access) CLI(ctx context.Context, args ...string) (string, error) {
	a.tb.Helper()
	if a.cli == "" {
		a.cli = natsCLI.path(ctx, a.tb)
	}
	cmd := exec.CommandContext(ctx, a.cli, append([]string{"--server", a.urls}, args...)...)
	// Its contexts and its cache are nobody's but the test's.
	cmd.Env = append(os.Environ(), "HOME="+a.tb.TempDir(), "XDG_CONFIG_HOME="+a.tb.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("nats %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(out), nil
}
