package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"github.com/kubeferry/kubeferry/test/internal/cache"
	"github.com/kubeferry/kubeferry/test/internal/freeport"
)

// buildCollector builds the OpenTelemetry Collector, the first time on a machine.
func (l *lab) buildCollector(ctx context.Context) error {
	source := filepath.Join(l.modules.test, "cmd", "bench", "otelcol")
	digest := sha256.New()
	for _, file := range []string{"main.go", "go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(source, file))
		if err != nil {
			return err
		}
		fmt.Fprintf(digest, "%s %d\n%s", file, len(text), text)
	}
	name := fmt.Sprintf("otelcol/%s-%s-%s-%x", runtime.Version(), runtime.GOOS, runtime.GOARCH, digest.Sum(nil)[:6])
	dir, err := cache.Dir(ctx, l.log, name, func(ctx context.Context, dir string) error {
		l.say("    building the OpenTelemetry Collector, which takes minutes, once")
		cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-trimpath", "-buildvcs=false", "-o", filepath.Join(dir, "otelcol"), ".")
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		if ctx.Err() != nil {
			return err
		}
		return fmt.Errorf("%w: the OpenTelemetry Collector cannot be built: %w", errSkipped, err)
	}
	l.programs["otelcol"] = filepath.Join(dir, "otelcol")
	return nil
}

// collector is the configuration that does about what kubeferry's does, the Events of a namespace to an HTTP receiver in
// JSON. In its mode watch it sends changes, in its mode pull what exists: nothing does both.
const collector = `receivers:
  k8sobjects:
    auth_type: kubeConfig
    objects: [{name: events, mode: %s, namespaces: [%s]}]
exporters:
  otlphttp:
    endpoint: %s
    encoding: json
    compression: none
    tls: {insecure: true}
service:
  pipelines:
    logs: {receivers: [k8sobjects], exporters: [otlphttp]}
  telemetry:
    metrics: {address: %q}
    logs: {level: info}
`

func (l *lab) startCollector(mode, namespace string) (*subject, error) {
	port, err := freeport.Pick()
	if err != nil {
		return nil, err
	}
	file, err := os.CreateTemp(l.dir, "otelcol-*.yaml")
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := io.WriteString(file, fmt.Sprintf(collector, mode, namespace, l.hook.url, freeport.Addr(port))); err != nil {
		return nil, err
	}
	return l.start("otelcol", []string{"KUBECONFIG=" + l.plane.KubeconfigFile()}, "--config", "file:"+file.Name())
}

func peerBacklog(ctx context.Context, l *lab) ([]check, error) {
	if err := l.buildCollector(ctx); err != nil {
		return nil, err
	}
	n, err := l.loadEvents(ctx)
	if err != nil {
		return nil, err
	}
	of, err := l.paired(ctx,
		side{name: "collector", run: func(ctx context.Context) (sample, error) {
			return l.backlog(ctx, otlp, n, func() (*subject, error) { return l.startCollector("pull", "backlog") })
		}}, l.exporterSide("kubeferry", n, events()))
	if err != nil {
		return nil, err
	}
	return l.peerChecks("backlog, Events", of), nil
}

func peerLive(ctx context.Context, l *lab) ([]check, error) {
	if err := l.buildCollector(ctx); err != nil {
		return nil, err
	}
	n := l.scaled(liveWrites)
	of, err := l.paired(ctx,
		side{name: "collector", run: func(ctx context.Context) (sample, error) {
			return l.follow(ctx, otlp, n, func(w writing) (*subject, error) { return l.startCollector("watch", w.namespace) }, collectorWatches)
		}}, l.liveExporter("kubeferry", n, false))
	if err != nil {
		return nil, err
	}
	return l.peerChecks("live, Events", of), nil
}

func collectorWatches(ctx context.Context, s *subject) error {
	return s.waitLogged(ctx, "Everything is ready")
}

func (l *lab) peerChecks(group string, of pair) []check {
	l.point(plotCPU, group, "OpenTelemetry Collector", median(each(of.a, cpuEach)))
	p := of.named("collector", "")
	return []check{
		p.against("CPU per object, µs", cpuEach, nil),
		p.against("peak RSS, MiB", peak, nil),
		p.against("objects/s", speed, nil),
	}
}
