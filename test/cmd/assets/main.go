// Command assets makes sure that the binaries of the test control plane exist on this machine, which takes minutes the
// first time, and prints the directory they are in. `KUBEBUILDER_ASSETS=$(go run ./cmd/assets)` suits envtest as well.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/kubeferry/kubeferry/test/controlplane"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	dir, err := controlplane.Assets(ctx, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
