package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
)

// suite is what the tests share; each part is made when it is first wanted.
type suite struct {
	dir    string
	plane  func() (*controlplane.ControlPlane, error)
	binary func() (string, error)
}

var shared suite

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "kubeferry-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var started *controlplane.ControlPlane
	shared = suite{
		dir: dir,
		plane: sync.OnceValues(func() (*controlplane.ControlPlane, error) {
			// The first start on a machine builds the binaries.
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
			defer cancel()
			plane, err := controlplane.Start(ctx, controlplane.Options{})
			started = plane
			return plane, err
		}),
		binary: sync.OnceValues(func() (string, error) { return build(dir) }),
	}
	code := m.Run()
	if started != nil {
		started.Stop()
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// plane is the control plane that the tests share.
func plane(tb testing.TB) *controlplane.ControlPlane {
	tb.Helper()
	p, err := shared.plane()
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

// build builds the program in its own module, where go.mod says what belongs to it.
func build(dir string) (string, error) {
	find := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeferry/kubeferry")
	find.Env = append(os.Environ(), "GOWORK=off")
	module, err := find.Output()
	if err != nil {
		return "", fmt.Errorf("find the exporter's module: %w", err)
	}
	binary := filepath.Join(dir, "exporter")
	cmd := exec.Command("go", "build", "-race", "-o", binary, "./cmd/exporter")
	cmd.Dir = strings.TrimSpace(string(module))
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the exporter: %w\n%s", err, out)
	}
	return binary, nil
}

// eventually asks until there is no error, for at most d.
func eventually(tb testing.TB, d time.Duration, what string, condition func() error) {
	tb.Helper()
	deadline := time.NewTimer(d)
	defer deadline.Stop()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			tb.Fatalf("%s: not within %v: %v", what, d, err)
		case <-tb.Context().Done():
			tb.Fatalf("%s: %v: %v", what, tb.Context().Err(), err)
		}
	}
}

// within returns a context that ends after d, with the test at the latest.
func within(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

// lasting returns when a fault has lasted for d.
func lasting(tb testing.TB, d time.Duration) {
	tb.Helper()
	select {
	case <-time.After(d):
	case <-tb.Context().Done():
		tb.Fatal(tb.Context().Err())
	}
}
