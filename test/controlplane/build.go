package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/progress"
)

// setupEnvtest is the tool that downloads the binaries that the Kubernetes project publishes for tests.
const setupEnvtest = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"

// build makes the binaries from source, with one command: what they share is compiled once, and both cores have work.
func (r *recipe) build(ctx context.Context, log io.Writer, dir string) error {
	built, err := os.MkdirTemp(dir, "build-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(built) }()
	return progress.Build(log, r.names(), r.takes, func() error {
		args := append([]string{"build", "-mod=readonly"}, programs.Flags...)
		args = append(args, "-ldflags", ldflags(r.version), "-o", built)
		for _, b := range r.binaries {
			args = append(args, b.pkg)
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Dir = r.dir
		cmd.Env = append(append(os.Environ(), programs.Env...), "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
		if _, err := output(cmd); err != nil {
			return err
		}
		for _, b := range r.binaries {
			if err := os.Rename(filepath.Join(built, command(b.pkg)), filepath.Join(dir, b.name)); err != nil {
				return err
			}
		}
		return nil
	})
}

// command is the name that go gives to the program of a package.
func command(pkg string) string {
	name := path.Base(pkg)
	if version.MatchString(name) {
		name = path.Base(path.Dir(pkg))
	}
	return name
}

var version = regexp.MustCompile(`^v[0-9]+$`)

// ldflags set the version, without which clients cannot parse what /version answers.
func ldflags(version string) string {
	return "-s -w -X k8s.io/component-base/version.gitVersion=" + version + " -X k8s.io/client-go/pkg/version.gitVersion=" + version
}

// envtestIndex is the list of what can be downloaded.
const envtestIndex = "https://raw.githubusercontent.com/kubernetes-sigs/controller-tools/HEAD/envtest-releases.yaml"

// reachable finds out whether there may be a download at all, before anything is compiled for it. A firewall that swallows packets must
// not hold up the build.
func reachable(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, envtestIndex, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", envtestIndex, resp.Status)
	}
	return nil
}

// download gets the binaries of the same minor version; not every patch release of Kubernetes is published for tests.
func download(ctx context.Context, log io.Writer, version, dir string) error {
	if err := reachable(ctx); err != nil {
		return err
	}
	fmt.Fprintf(log, "looking for test binaries of Kubernetes %s to download\n", version)
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()

	minor := version[:strings.LastIndex(version, ".")]
	bin := filepath.Join(dir, "download")
	cmd := exec.CommandContext(ctx, "go", "run", setupEnvtest,
		"use", strings.TrimPrefix(minor, "v")+".x", "-p", "path", "--bin-dir", bin)
	cmd.Dir = dir // outside of any module, whose replacements would get in the way
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	cmd.WaitDelay = time.Second // `go run` does not pass a kill on to the program that it runs
	found, err := output(cmd)
	if err != nil {
		_ = os.RemoveAll(bin)
		return err
	}
	for _, b := range server.binaries {
		if err := os.Rename(filepath.Join(strings.TrimSpace(found), b.name), filepath.Join(dir, b.name)); err != nil {
			return err
		}
	}
	return os.RemoveAll(bin)
}

// output runs cmd and returns what it printed to stdout; stderr becomes part of the error.
func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		lines = lines[max(0, len(lines)-20):]
		return "", fmt.Errorf("go %s: %w: %s", cmd.Args[1], err, strings.Join(lines, "\n"))
	}
	return string(out), nil
}
