package release

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Built is the version of the release that [Prepare] writes for tests. It is for this machine only.
const Built = "v1.2.3"

// Dir returns the directory that Prepare writes to.
func Dir() (string, error) {
	root, err := programs.Root()
	return filepath.Join(root, "bin", "test", "release.d"), err
}

// Prepare writes the release of this checkout for tests, to [Dir].
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
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	return Run(ctx, log, dir)
}

// Run writes the release with the program that [Prepare] has built. A test's own process has the race detector, with which it takes long.
func Run(ctx context.Context, log io.Writer, dir string) error {
	program, err := programs.Release().Path()
	if err != nil {
		return err
	}
	platforms := "linux/" + runtime.GOARCH // of the image
	if runtime.GOOS != "linux" {
		platforms += " " + runtime.GOOS + "/" + runtime.GOARCH
	}
	cmd := exec.CommandContext(ctx, program, "-version", Built, "-platforms", platforms, "-o", dir)
	cmd.Stdout, cmd.Stderr = io.Discard, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("write the release: %w", err)
	}
	return nil
}
