// Command otelcol is the OpenTelemetry Collector with what the comparison in docs/performance.md needs: the k8sobjects
// receiver and the OTLP/HTTP exporter. It is a module of its own, since its dependencies are many; the benchmark builds
// it into the user's cache directory.
package main

import (
	"fmt"
	"os"

	"github.com/open-telemetry/opentelemetry-collector-contrib/receiver/k8sobjectsreceiver"
	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/otlphttpexporter"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/receiver"
)

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "otelcol", Version: "0.111.0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
			DefaultScheme:     "file",
		}},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "otelcol:", err)
		os.Exit(1)
	}
}

func factories() (factories otelcol.Factories, err error) {
	if factories.Receivers, err = receiver.MakeFactoryMap(k8sobjectsreceiver.NewFactory()); err != nil {
		return factories, err
	}
	factories.Exporters, err = exporter.MakeFactoryMap(otlphttpexporter.NewFactory())
	return factories, err
}
