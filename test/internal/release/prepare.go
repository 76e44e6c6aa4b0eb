package release

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gofrs/flock"

	"github.com/kubeferry/kubeferry/test/internal/image"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Built is the version of the release that [Prepare] writes for tests.
const Built = "v1.2.3"

// Platforms are what it is for: the program for this machine, and the image for its architecture. `make release` builds all the others.
func Platforms() []string {
	platforms := []string{"linux/" + runtime.GOARCH}
	if runtime.GOOS != "linux" {
		platforms = append(platforms, runtime.GOOS+"/"+runtime.GOARCH)
	}
	return platforms
}

// Dir returns the directory that Prepare writes to.
func Dir() (string, error) {
	root, err := programs.Root()
	return filepath.Join(root, "bin", "test", "release.d"), err
}

// Prepare writes the release of this checkout for tests, to [Dir], unless it is there.
func Prepare(ctx context.Context, log io.Writer) error {
	dir, err := Dir()
	if err != nil {
		return err
	}
	for _, needed := range []programs.Program{programs.Helm(), programs.Release()} {
		if err := needed.Build(ctx, log); err != nil {
			return err
		}
	}
	lock := flock.New(dir + ".lock")
	if err := lock.Lock(); err != nil {
		return err
	}
	defer func() { _ = lock.Unlock() }()
	want, err := inputs(ctx)
	if err != nil {
		return err
	}
	if have, err := os.ReadFile(dir + ".inputs"); err == nil && string(have) == want {
		if _, err := os.Stat(filepath.Join(dir, Checksums)); err == nil {
			return nil
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := Run(ctx, log, dir); err != nil {
		return err
	}
	if have, err := inputs(ctx); err != nil || have != want { // the checkout was edited meanwhile
		return err
	}
	return os.WriteFile(dir+".inputs", []byte(want), 0o644)
}

// Run writes the release with the program that [Prepare] has built. A test's own process has the race detector, with which it takes long.
func Run(ctx context.Context, log io.Writer, dir string) error {
	program, err := programs.Release().Path()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "-version", Built, "-platforms", strings.Join(Platforms(), " "), "-o", dir)
	cmd.Stdout, cmd.Stderr = io.Discard, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("write the release: %w", err)
	}
	return nil
}

// inputs is a digest of what the release for tests is made of.
func inputs(ctx context.Context) (string, error) {
	root, err := programs.Root()
	if err != nil {
		return "", err
	}
	hash := sha256.New()
	for _, program := range []programs.Program{programs.Release(), programs.Helm()} {
		path, err := program.Path()
		if err != nil {
			return "", err
		}
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(hash, file)
		_ = file.Close()
		if err != nil {
			return "", err
		}
	}
	for _, platform := range Platforms() {
		goos, arch, _ := strings.Cut(platform, "/")
		program, err := image.Program(ctx, root, goos, arch, Built)
		if err != nil {
			return "", err
		}
		hash.Write(program)
	}
	if err := tar.NewWriter(hash).AddFS(os.DirFS(filepath.Join(root, "deploy", "chart"))); err != nil {
		return "", err
	}
	created, revision := image.Commit(ctx, root)
	return fmt.Sprintf("%x %v %s\n", hash.Sum(nil), created, revision), nil
}
