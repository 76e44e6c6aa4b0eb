// Command assets fetches and builds what the tests need and must not fetch or build while their clocks run: the API
// server and etcd, Kafka, the NATS server and its command, kubectl, Helm, promtool, the exporter. It takes minutes the first time on a
// machine. It prints the directory of the API server and etcd: `KUBEBUILDER_ASSETS=$(go run ./cmd/assets)` suits envtest as well.
package main

import (
	"fmt"
	"os"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/exampleprograms"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/release"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

func main() {
	err := assets.All(kafkatest.Prepare, natstest.Prepare, programs.Exporter().Build, programs.RaceExporter().Build, programs.Floor().Build, programs.Kubectl().Build,
		programs.Helm().Build, programs.Promtool().Build, programs.DownloadCRDs, release.Prepare, exampleprograms.Prepare, controlplane.Prepare)
	dir := ""
	if err == nil {
		dir, err = controlplane.Assets()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
	fmt.Println(dir)
}
