// Command assets fetches and builds what tests need and must not fetch or build while their clocks run: those that its arguments name, or
// else all of them. What is there already is not built again.
//
//	go run ./cmd/assets apiserver kubeferry
//
// If the API server is among them, it prints the directory of the API server and etcd, which suits envtest as well:
//
//	KUBEBUILDER_ASSETS=$(go run ./cmd/assets apiserver)
package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/exampleprograms"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/release"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/opensearchtest"
)

// asset is one of the arguments, and what prepares it.
type asset struct {
	name    string
	prepare []assets.Prepare
}

// known are all of them but the controllers, in the order in which they are prepared without arguments.
var known = []asset{
	apiserver, // takes longest
	{"kafka", []assets.Prepare{kafkatest.Prepare}},
	{"opensearch", []assets.Prepare{opensearchtest.Prepare}},
	{"nats", []assets.Prepare{programs.NATSServer().Build}},
	{"nats-cli", []assets.Prepare{programs.NATSCLI().Build}},
	{"otelcol", []assets.Prepare{programs.Collector().Build}},
	{"kubeferry", []assets.Prepare{programs.Exporter().Build}},
	{"race-kubeferry", []assets.Prepare{programs.RaceExporter().Build}},
	{"floor", []assets.Prepare{programs.Floor().Build}},
	{"kubectl", []assets.Prepare{programs.Kubectl().Build}},
	{"helm", []assets.Prepare{programs.Helm().Build}},
	{"promtool", []assets.Prepare{programs.Promtool().Build}},
	{"crds", []assets.Prepare{programs.DownloadCRDs}},
	{"release", []assets.Prepare{release.Prepare}},
	{"examples", []assets.Prepare{exampleprograms.Prepare}},
}

var (
	apiserver = asset{"apiserver", []assets.Prepare{controlplane.Prepare}}
	// controllers are what only the tests with nodes run, and are prepared only by their name.
	controllers = asset{"controllers", []assets.Prepare{controlplane.PrepareControllers}}
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "assets:", err)
		os.Exit(1)
	}
}

func run(names []string) error {
	wanted, err := find(names)
	if err != nil {
		return err
	}
	var prepare []assets.Prepare
	server := false
	for _, a := range wanted {
		prepare = append(prepare, a.prepare...)
		server = server || a.name == apiserver.name
	}
	if err := assets.All(prepare...); err != nil || !server {
		return err
	}
	dir, err := controlplane.Assets()
	if err == nil {
		fmt.Println(dir)
	}
	return err
}

// find returns the assets of these names; without names, all that are known.
func find(names []string) ([]asset, error) {
	if len(names) == 0 {
		return known, nil
	}
	all := append(slices.Clone(known), controllers)
	var found []asset
	var unknown error
	for _, name := range names {
		i := slices.IndexFunc(all, func(a asset) bool { return a.name == name })
		if i < 0 {
			unknown = errors.Join(unknown, fmt.Errorf("there is no %q", name))
			continue
		}
		found = append(found, all[i])
	}
	if unknown != nil {
		var list []string
		for _, a := range all {
			list = append(list, a.name)
		}
		return nil, fmt.Errorf("%w; it prepares: %s", unknown, strings.Join(list, " "))
	}
	return found, nil
}
