// Package release writes what a release consists of. The same commit, built with the same version of Go, gives the same bytes.
package release

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Checksums is the name of the file that `sha256sum --check` reads.
const Checksums = "SHA256SUMS"

// Write writes the release to a directory: kubeferry for each platform, such as linux/amd64, with its bill of materials, the image, the
// chart, and the checksums of all these. It needs helm to be built.
func Write(ctx context.Context, dir, name string, platforms []string, log io.Writer) error {
	root, err := programs.Root()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var written, ofImage []string
	for _, platform := range platforms {
		goos, arch, _ := strings.Cut(platform, "/")
		fmt.Fprintf(log, "building kubeferry for %s\n", platform)
		binary, err := program(ctx, root, goos, arch, name)
		if err != nil {
			return err
		}
		file := strings.Join([]string{"kubeferry", name, goos, arch}, "-")
		bill, err := billOfMaterials(binary, name)
		if err != nil {
			return fmt.Errorf("the bill of materials of %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), binary, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file+".cdx.json"), bill, 0o644); err != nil {
			return err
		}
		written = append(written, file, file+".cdx.json")
		if goos == "linux" {
			ofImage = append(ofImage, arch)
		}
	}

	index, err := Image(ctx, name, ofImage, log)
	if err != nil {
		return err
	}
	file := "kubeferry-" + name + "-image.tar"
	if err := WriteImage(index, name, filepath.Join(dir, file)); err != nil {
		return err
	}
	chart, err := packageChart(ctx, root, dir, name)
	if err != nil {
		return err
	}
	return writeChecksums(dir, append(written, file, chart))
}

// packageChart writes the chart as an archive, and returns its name. Its version is that of the release, if that is one of semantic
// versioning, as charts need it.
func packageChart(ctx context.Context, root, dir, name string) (file string, err error) {
	helm, err := programs.Helm().Path()
	if err != nil {
		return "", err
	}
	number := "0.0.0-devel-" + name
	if _, err := version.ParseSemantic(name); err == nil {
		number = strings.TrimPrefix(name, "v")
	}
	copied, err := os.MkdirTemp("", "kubeferry-chart-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(copied) }()
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(root, "deploy", "chart"))); err != nil {
		return "", err
	}
	created, _ := commit(ctx, root)
	err = filepath.WalkDir(copied, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Chtimes(path, created, created) // which the archive has
		}
		return err
	})
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, helm, "package", copied, "--version", number, "--app-version", name, "--destination", dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("package the chart: %w: %s", err, bytes.TrimSpace(out))
	}
	return "kubeferry-" + number + ".tgz", nil
}

func writeChecksums(dir string, files []string) error {
	slices.Sort(files)
	var lines bytes.Buffer
	for _, file := range files {
		content, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), file)
	}
	return os.WriteFile(filepath.Join(dir, Checksums), lines.Bytes(), 0o644)
}
