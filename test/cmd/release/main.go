// Command release writes what a release consists of to a directory, or the container image alone to a file or a registry. See `make release`
// and `make image`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/release"
)

func main() {
	version := flag.String("version", "devel", "what `kubeferry version` prints, and a part of the files' names")
	platforms := flag.String("platforms", "linux/amd64", "what to build programs for, separated by spaces")
	out := flag.String("o", "", "the directory to write")
	image := flag.String("image", "", "write the image alone to this `file`, a tar archive in the layout of the OCI image specification")
	push := flag.String("push", "", "push the image under this name, such as registry.example.com/kubeferry:v1; logs in as docker does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	if *image != "" {
		err = writeImage(ctx, *image, *version, *push)
	} else {
		err = writeRelease(ctx, *out, *version, strings.Fields(*platforms))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func writeRelease(ctx context.Context, out, version string, platforms []string) error {
	if out == "" {
		return errors.New("-o or -image is required")
	}
	if err := programs.Helm().Build(ctx, os.Stderr); err != nil {
		return err
	}
	if err := release.Write(ctx, out, version, platforms, os.Stderr); err != nil {
		return err
	}
	checksums, err := os.ReadFile(filepath.Join(out, release.Checksums))
	fmt.Printf("%s:\n%s", out, checksums)
	return err
}

func writeImage(ctx context.Context, file, version, push string) error {
	var to name.Reference
	if push != "" { // a mistake in the name is reported before the builds, which take minutes
		var err error
		if to, err = name.ParseReference(push); err != nil {
			return err
		}
	}
	index, err := release.Image(ctx, version, release.Architectures, os.Stderr)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := release.WriteImage(index, version, file); err != nil {
		return err
	}
	fmt.Println(file, digest)
	if to == nil {
		return nil
	}
	if err := release.Push(ctx, index, to); err != nil {
		return err
	}
	fmt.Println(to.Context().Digest(digest.String()))
	return nil
}
