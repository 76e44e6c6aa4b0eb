package app

import (
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/source"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

// everyMetric is a configuration with which kubeferry has all of its metrics but those of replicas.
const everyMetric = `
cluster: c
stateDir: %s
sources: [{name: s, resources: [v1/events]}]
pipelines: [{name: p, sink: out, enrich: involvedObject, filters: [{types: [ADDED]}]}]
sinks: [{name: out, stdout: {}}]
`

// TestMetricsPage: docs/metrics.md lists the metrics of the program. `go test ./cmd/exporter/app -run MetricsPage -update` writes the tables.
func TestMetricsPage(t *testing.T) {
	const path, begin, end = "../../../docs/metrics.md", "<!-- what follows is made from the metrics -->\n", "<!-- end -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("the page has no place for the tables")
	}
	want := before + begin + metricsTables(gatherAll(t)) + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(page) {
		t.Error("docs/metrics.md is not what the program has: run go test ./cmd/exporter/app -run MetricsPage -update")
	}
}

// gatherAll returns the metrics that a run registers, in the order of their names. The API server answers nothing but who it is.
func gatherAll(t *testing.T) []*dto.MetricFamily {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","uid":"u"}}`)
	}))
	t.Cleanup(server.Close)
	loaded, _, err := config.Parse(fmt.Appendf(nil, everyMetric, t.TempDir()), "config.yaml", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
	if err != nil {
		t.Fatal(err)
	}
	cluster, logger, registry := &rest.Config{Host: server.URL}, slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	client, err := source.NewClient(cluster, false)
	if err != nil {
		t.Fatal(err)
	}
	state, err := openState(t.Context(), loaded, client, nil, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(state.close)
	enricher := newEnricher(loaded, client, registry, logger)
	pipelines, err := newPipelines(loaded, map[string]OpenSink{}, []byte("key"), enricher, state, pipeline.NewMetrics(registry), logger)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := newSources(loaded, client, pipelines, state, source.NewMetrics(registry), logger); err != nil {
		t.Fatal(err)
	}
	health := &health{starting: startingWatches(loaded)}
	source.RegisterWatches(registry, health.watches)
	registerReplica(registry, health)
	registerState(registry, state)
	registerBuild(registry, "v")
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// metricsTables returns a table of the metrics of a pipeline, one of those of a watch, and one of all others.
func metricsTables(families []*dto.MetricFamily) string {
	rows := map[string]string{}
	for _, family := range families {
		about, labels := "the process", []string{}
		for _, label := range family.GetMetric()[0].GetLabel() {
			labels = append(labels, "`"+label.GetName()+"`")
			switch label.GetName() {
			case "pipeline":
				about = "a pipeline"
			case "resource":
				about = "a watch"
			}
		}
		rows[about] += fmt.Sprintf("| `%s` | %s | %s | %s |\n", family.GetName(), strings.ToLower(family.GetType().String()), strings.Join(labels, ", "), family.GetHelp())
	}
	var tables strings.Builder
	for _, about := range []string{"a pipeline", "a watch", "the process"} {
		fmt.Fprintf(&tables, "\n## Of %s\n\n| metric | type | labels | meaning |\n|---|---|---|---|\n%s", about, rows[about])
	}
	return tables.String()
}
