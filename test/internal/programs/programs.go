// Package programs builds the Go programs that the tests run, each into bin/test of this checkout, and finds them there.
// Tests only find: building takes from seconds to minutes, which belongs before the clock of any test.
package programs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gofrs/flock"

	"github.com/kubeferry/kubeferry/test/internal/progress"
)

// Flags and Env are how everything is built that tests and the demo run: with one and the same, what two programs import is compiled once.
// They are those of a release.
var (
	Flags = []string{"-trimpath", "-buildvcs=false"}
	Env   = []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS="}
)

// Program is a program to build from source.
type Program struct {
	name string
	// module is the directory, in this checkout, whose go.mod and go.sum pin what is built.
	module string
	pkg    string
	race   bool
	tags   string
}

// Exporter is the program under test, as it is released.
func Exporter() Program { return Program{name: "kubeferry", module: ".", pkg: "./cmd/exporter"} }

// RaceExporter is the program under test with the race detector, where there is a C compiler for that.
func RaceExporter() Program {
	return Program{name: "kubeferry-race", module: ".", pkg: "./cmd/exporter", race: true}
}

// Floor is what the benchmarks compare the program under test with.
func Floor() Program { return Program{name: "floor", module: ".", pkg: "./bench/floor"} }

// Release is the program that writes a release. It is built without the race detector, with which compressing takes long.
func Release() Program { return Program{name: "release", module: "test", pkg: "./cmd/release"} }

// NATSServer is a server that can be killed, which one inside the test process cannot.
func NATSServer() Program {
	return Program{name: "nats-server", module: "test", pkg: "github.com/nats-io/nats-server/v2"}
}

// NATSCLI is the command line client of the NATS project.
func NATSCLI() Program {
	return Program{name: "nats", module: "test/natstest/assets/natscli", pkg: "github.com/nats-io/natscli/nats"}
}

// Collector is an OpenTelemetry Collector with what the tests need.
func Collector() Program {
	return Program{name: "otelcol", module: "test/sinks/assets/otelcol", pkg: "."}
}

// Kubectl is the command line client of Kubernetes.
func Kubectl() Program {
	return Program{name: "kubectl", module: "test/deploy/assets/kubectl", pkg: "k8s.io/kubernetes/cmd/kubectl"}
}

// Example is a consumer of examples/go.
func Example(name string) Program {
	return Program{name: "example-" + name, module: "examples/go", pkg: "./" + name}
}

// Helm is the command line of the Helm project.
func Helm() Program {
	return Program{name: "helm", module: "test/deploy/assets/helm", pkg: "helm.sh/helm/v4/cmd/helm"}
}

// Promtool is the command line of Prometheus that tests rules, here without the clients of every cloud.
func Promtool() Program {
	return Program{name: "promtool", module: "test/deploy/assets/promtool", pkg: "github.com/prometheus/prometheus/cmd/promtool", tags: "remove_all_sd"}
}

// MonitoringCRDs returns the directory with the CustomResourceDefinitions of the Prometheus Operator. It downloads them once.
func MonitoringCRDs(ctx context.Context) (dir string, err error) {
	const module = "github.com/prometheus-operator/prometheus-operator"
	root, err := Root()
	if err != nil {
		return "", err
	}
	out, err := goCommand(ctx, filepath.Join(root, "test", "deploy", "assets", "prometheus-operator"), []string{"GOFLAGS="}, "mod", "download", "-json", module)
	if err != nil {
		return "", err
	}
	var downloaded struct{ Dir string }
	err = json.Unmarshal([]byte(out), &downloaded)
	return filepath.Join(downloaded.Dir, "example", "prometheus-operator-crd"), err
}

// DownloadCRDs is MonitoringCRDs before any test.
func DownloadCRDs(ctx context.Context, _ io.Writer) error {
	_, err := MonitoringCRDs(ctx)
	return err
}

// Path returns the path of the program. It fails if the program was not built.
func (p Program) Path() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	path := p.path(root)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("%s is not built, run `make assets`: %w", p.name, err)
	}
	return path, nil
}

func (p Program) path(root string) string { return filepath.Join(root, "bin", "test", p.name) }

// Build builds the program unless what was built before is up to date. Processes that build at the same time wait for
// each other.
func (p Program) Build(ctx context.Context, log io.Writer) error {
	root, err := Root()
	if err != nil {
		return err
	}
	path := p.path(root)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	lock := flock.New(path + ".lock")
	if err := lock.Lock(); err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	args, env := append([]string{"build", "-tags", p.tags, "-o", path}, Flags...), Env
	if p.race && hasRace(ctx) {
		args, env = append(args, "-race"), append(slices.Clone(Env), "CGO_ENABLED=1")
	}
	module := filepath.Join(root, filepath.FromSlash(p.module))
	return progress.Build(log, p.name, "", func() error {
		if _, err := goCommand(ctx, module, env, append(args, p.pkg)...); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		return nil
	})
}

// hasRace reports whether the race detector can be used. On Linux it needs a C compiler.
func hasRace(ctx context.Context) bool {
	out, err := goCommand(ctx, ".", []string{"CGO_ENABLED="}, "env", "GOOS", "CGO_ENABLED") // not as this program was built
	return err == nil && out != "linux\n0"
}

func goCommand(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(append(os.Environ(), "GOWORK=off"), env...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), nil
}

// Root returns the root of this checkout: the directory above the module that the working directory lies in. The path
// of a source file would not do, because -trimpath removes it.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/kubeferry/kubeferry/test\n")) {
			return filepath.Dir(dir), nil
		}
		if filepath.Dir(dir) == dir {
			return "", errors.New("the working directory is not in kubeferry's test module")
		}
		dir = filepath.Dir(dir)
	}
}
