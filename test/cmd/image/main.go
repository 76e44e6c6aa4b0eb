// Command image builds the container image of kubeferry, for linux/amd64 and linux/arm64, without a container engine,
// and writes it to a file or pushes it to a registry. See `make image`.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/google/go-containerregistry/pkg/name"

	"github.com/kubeferry/kubeferry/test/internal/image"
)

func main() {
	version := flag.String("version", "devel", "what `kubeferry version` prints, and the name of the image in the file")
	out := flag.String("o", "", "the file to write, a tar archive in the layout of the OCI image specification")
	push := flag.String("push", "", "the name to push the image to, such as registry.example.com/kubeferry:v1; logs in as docker does")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *version, *out, *push); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version, out, push string) error {
	var to name.Reference
	if push != "" { // a mistake in the name is reported before the builds, which take minutes
		var err error
		if to, err = name.ParseReference(push); err != nil {
			return err
		}
	}
	index, err := image.Build(ctx, version, image.Architectures, os.Stderr)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if out != "" {
		if err := image.Write(index, version, out); err != nil {
			return err
		}
		fmt.Println(out, digest)
	}
	if to != nil {
		if err := image.Push(ctx, index, to); err != nil {
			return err
		}
		fmt.Println(to.Context().Digest(digest.String()))
	}
	return nil
}
