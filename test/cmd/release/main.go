// Command release writes what a release consists of to a directory. See `make release`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/release"
)

func main() {
	version := flag.String("version", "devel", "what `kubeferry version` prints, and a part of the files' names")
	platforms := flag.String("platforms", "linux/amd64", "what to build programs for, separated by spaces")
	out := flag.String("o", "", "the directory to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *out, *version, strings.Fields(*platforms)); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out, version string, platforms []string) error {
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
