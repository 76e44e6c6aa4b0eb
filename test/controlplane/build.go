package controlplane

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// setupEnvtest is the tool that downloads the binaries that the Kubernetes project publishes for tests.
const setupEnvtest = "sigs.k8s.io/controller-runtime/tools/setup-envtest@v0.25.1"

// build makes the binaries from source.
func (r *recipes) build(ctx context.Context, log io.Writer, dir string) error {
	for _, p := range r.binaries {
		fmt.Fprintf(log, "building %s from source, about %s, once\n", p.name, p.takes)
		begin := time.Now()
		args := append([]string{"build", "-o", filepath.Join(dir, p.name)}, buildFlags(r.version)...)
		cmd := exec.CommandContext(ctx, "go", append(args, p.pkg)...)
		cmd.Dir = filepath.Join(r.dir, p.module)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=",
			"GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
		if _, err := output(cmd); err != nil {
			return fmt.Errorf("build %s: %w", p.name, err)
		}
		fmt.Fprintf(log, "built %s in %s\n", p.name, time.Since(begin).Round(time.Second))
	}
	return nil
}

// buildFlags set the version, without which clients cannot parse what /version answers.
func buildFlags(version string) []string {
	return []string{
		"-mod=readonly", "-trimpath", "-buildvcs=false",
		"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion=" + version +
			" -X k8s.io/client-go/pkg/version.gitVersion=" + version,
	}
}

// download gets the binaries of the same minor version; not every patch release of Kubernetes is published for tests.
func download(ctx context.Context, version, dir string) error {
	// Offline it fails at once; behind a firewall that swallows packets a minute is still little beside the build.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
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
	for _, b := range server {
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
