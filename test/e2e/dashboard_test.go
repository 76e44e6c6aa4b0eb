package e2e_test

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/prometheus/prometheus/model/value"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedDashboard computes the queries of the chart's dashboard from what replicas report while a sink is away, records are refused and
// the leader is killed: each query returns something, and each legend is whole. For the documentation it takes minutes, and draws the panels.
func TestExtendedDashboard(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "shop")
	audit, search := webhooktest.Start(t), webhooktest.Start(t)
	r := newReplicas(t, namespace, fmt.Sprintf(`
sources: [{name: workloads, resources: [v1/configmaps, apps/v1/deployments], namespaces: {include: [%s]}}]
pipelines:
  - {name: audit, sink: audit-log}
  - {name: deletions, sink: audit-log, filters: [{types: [DELETED]}]}
  - {name: search, sink: search-index, backlog: {maxBytes: 1Mi, maxDiskBytes: 2Mi}}
sinks:
  - {name: audit-log, webhook: {url: %q}}
  - {name: search-index, webhook: {url: %q}}
`, namespace, audit.URL(), search.URL()))
	r.patient()
	r.adjust = []func(*process.Options){plain(t)}
	r.Start()
	r.Start()
	leader, _ := r.WaitInSync()
	s := &scrapes{tb: t, of: r, server: alerts.NewEvaluator(nil), started: time.Now(), last: map[*member]metrics{}, names: map[*member]string{}}
	writing := startLoad(t, plane(t).Config(), load.Options{
		Resources: []load.Resource{load.ConfigMaps(), load.Deployments()}, Namespaces: []string{namespace}, Rate: 25, Seed: 7,
	})
	delivers := func() bool { return s.sum("kubeferry_records_delivered_total", "pipeline=deletions") > 0 }
	s.until("records are delivered", delivers)
	search.Use(webhooktest.Status(http.StatusServiceUnavailable))
	s.until("changes wait", func() bool { return s.sum("kubeferry_backlog_deltas", "pipeline=search") > 9 })
	audit.Use(webhooktest.WhenID(func(id string) bool { return strings.HasSuffix(id, "0/DELETED") },
		webhooktest.Answer{Status: http.StatusUnprocessableEntity}, webhooktest.Accept()))
	s.until("records become dead letters", func() bool { return s.sum("kubeferry_records_dead_total") > 0 })
	audit.Use(webhooktest.Accept())
	search.Use(webhooktest.Accept())
	s.until("few changes wait", func() bool { return s.sum("kubeferry_backlog_deltas", "pipeline=search") < 9 })
	r.Remove(leader)
	leader.Kill()
	r.Start()
	s.until("another replica leads", func() bool { return s.sum("kubeferry_standbys_in_sync") == 1 && delivers() })
	writing.End()
	s.draw(s.panels())
}

// scrapes are what Prometheus has of the replicas that run.
type scrapes struct {
	tb      testing.TB
	of      *replicas
	server  *alerts.Evaluator
	started time.Time
	at      time.Time           // of the last scrape
	last    map[*member]metrics // of the last scrape
	names   map[*member]string  // of the replicas
}

// take takes a scrape, if the last one was not just before.
func (s *scrapes) take() {
	s.tb.Helper()
	if time.Since(s.at) < time.Second/2 {
		return
	}
	samples := metrics{}
	for m, last := range s.last {
		if !slices.Contains(s.of.running, m) {
			for name := range scraped(last, s.names[m]) {
				samples[name] = math.Float64frombits(value.StaleNaN) // as Prometheus does for a target that is gone
			}
			delete(s.last, m)
		}
	}
	for _, m := range s.of.running {
		if s.names[m] == "" {
			s.names[m] = fmt.Sprintf("replica-%d", len(s.names)+1)
		}
		s.last[m] = m.Metrics()
		maps.Copy(samples, scraped(s.last[m], s.names[m]))
	}
	s.at = time.Now()
	if _, err := s.server.Scrape(s.tb.Context(), s.at, samples); err != nil {
		s.tb.Fatal(err)
	}
}

// sum adds up a metric of the last scrape.
func (s *scrapes) sum(name string, labels ...string) (sum float64) {
	for _, samples := range s.last {
		sum += max(0, samples.sum(name, labels...))
	}
	return sum
}

// until takes scrapes until a condition holds: for a picture, long enough to be seen.
func (s *scrapes) until(what string, holds func() bool) {
	s.tb.Helper()
	begun, atLeast := time.Now(), time.Duration(0)
	if pictures != "" {
		atLeast = 25 * time.Second
	}
	eventually(s.tb, atLeast+3*wide, what, func() error {
		if s.take(); time.Since(begun) < atLeast || !holds() {
			return errors.New("not yet")
		}
		return nil
	})
}

// panelLine is a series as a panel shows it.
type panelLine struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"` // the time in seconds, and the value
}

// panels returns the panels of the dashboard, each with its lines.
func (s *scrapes) panels() []map[string]any {
	s.tb.Helper()
	root, err := programs.Root()
	if err != nil {
		s.tb.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "deploy", "chart", "files", "dashboard.json"))
	if err != nil {
		s.tb.Fatal(err)
	}
	var board struct {
		Panels []map[string]any
	}
	var queries struct {
		Panels []struct {
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := errors.Join(json.Unmarshal(text, &board), json.Unmarshal(text, &queries)); err != nil {
		s.tb.Fatal(err)
	}
	for i, panel := range queries.Panels {
		var lines []panelLine
		for _, target := range panel.Targets {
			lines = append(lines, s.lines(target.Expr, target.LegendFormat)...)
		}
		board.Panels[i]["lines"] = lines
	}
	return board.Panels
}

func (s *scrapes) lines(expr, legend string) (lines []panelLine) {
	s.tb.Helper()
	rateInterval := "5m"
	if pictures != "" {
		rateInterval = "10s"
	}
	expr = strings.NewReplacer("$job", ".*", "$__rate_interval", rateInterval).Replace(expr)
	matrix, err := s.server.Range(s.tb.Context(), expr, s.started, s.at, time.Second)
	if err != nil || len(matrix) == 0 {
		s.tb.Errorf("%s: %d series, %v", expr, len(matrix), err)
	}
	for _, series := range matrix {
		line := panelLine{Name: regexp.MustCompile(`\{\{\w+\}\}`).ReplaceAllStringFunc(legend, func(label string) string {
			value := series.Metric.Get(strings.Trim(label, "{}"))
			if value == "" {
				s.tb.Errorf("%s: %s has no %s", expr, series.Metric, label)
			}
			return value
		})}
		for _, point := range series.Floats {
			if !math.IsNaN(point.F) { // a quantile while nothing is delivered
				line.Points = append(line.Points, [2]float64{float64(point.T) / 1000, point.F})
			}
		}
		lines = append(lines, line)
	}
	return lines
}

// dashboardPage draws panels with their lines.
//
//go:embed testdata/dashboard.html
var dashboardPage string

// draw writes pictures of the dashboard, if there is a directory for them.
func (s *scrapes) draw(panels []map[string]any) {
	s.tb.Helper()
	if pictures == "" {
		return
	}
	page := filepath.Join(s.tb.TempDir(), "dashboard.html")
	var html strings.Builder
	err := template.Must(template.New("").Parse(dashboardPage)).Execute(&html, map[string]any{"panels": panels, "from": s.started.Unix(), "to": s.at.Unix()})
	if err := errors.Join(err, os.WriteFile(page, []byte(html.String()), 0o600)); err != nil {
		s.tb.Fatal(err)
	}
	b := startBrowser(s.tb)
	for _, scheme := range []string{"light", "dark"} {
		b.size(960, 800, scheme)
		b.do(chromedp.EmulateViewport(960, 800, chromedp.EmulateScale(2)), chromedp.Navigate("file://"+page))
		b.screenshot("dashboard-" + scheme)
	}
	if got := b.console(); len(got) > 0 {
		s.tb.Errorf("the browser reports %q", got)
	}
}
