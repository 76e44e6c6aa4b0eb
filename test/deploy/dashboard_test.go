package deploy_test

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
)

// dashboard has the queries of a Grafana dashboard.
type dashboard struct {
	Panels []struct {
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

// testMetrics: what the dashboard shows and the rules are made of is on a leader's /metrics, with the labels that they sum by.
func testMetrics(t *testing.T, leader *exporter) {
	t.Helper()
	status, body, err := leader.ask(t.Context(), "/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	labels := map[string][]string{} // of each metric
	for _, line := range regexp.MustCompile(`(?m)^([a-z_]+)(\{.*\})? `).FindAllStringSubmatch(string(body), -1) {
		labels[line[1]] = []string{"instance", "job", "namespace"} // of the target
		for _, label := range regexp.MustCompile(`[{,]([a-z_]+)="`).FindAllStringSubmatch(line[2], -1) {
			labels[line[1]] = append(labels[line[1]], label[1])
		}
	}
	files := filepath.Join("..", "..", "deploy", "chart", "files")
	rules, err := alerts.Load(filepath.Join(files, "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var exprs []string
	for _, rule := range rules {
		exprs = append(exprs, rule.Expr)
	}
	var board dashboard
	if err := json.Unmarshal([]byte(read(t, filepath.Join(files, "dashboard.json"))), &board); err != nil {
		t.Fatal(err)
	}
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			expr := strings.ReplaceAll(target.Expr, "$__rate_interval", "5m")
			if exprs = append(exprs, expr); !strings.Contains(expr, `{job=~"$job"`) {
				t.Errorf("%s: %s is not about the chosen job", panel.Title, expr)
			}
			names, err := alerts.Metrics(expr)
			if err != nil || len(names) == 0 {
				continue // below
			}
			for _, label := range regexp.MustCompile(`\{\{(\w+)\}\}`).FindAllStringSubmatch(target.LegendFormat, -1) {
				if !slices.Contains(labels[names[0]], label[1]) {
					t.Errorf("%s: %s has no label %s", panel.Title, names[0], label[1])
				}
			}
		}
	}
	if len(exprs) < len(rules)+20 {
		t.Fatalf("there are %d expressions", len(exprs))
	}
	for _, expr := range exprs {
		names, err := alerts.Metrics(expr)
		if err != nil {
			t.Errorf("%s: %v", expr, err)
		}
		for _, name := range names {
			if _, ok := labels[name]; !ok {
				t.Errorf("%s: kubeferry has no %s", expr, name)
			}
		}
	}
}

// checkRules: the rules of a release are those of the file, about the job of its PodMonitor.
func checkRules(t *testing.T, objects []*unstructured.Unstructured, job string) {
	t.Helper()
	rules := rulesOf(t, objects)
	if len(rules) < 12 {
		t.Fatalf("%d rules", len(rules))
	}
	for _, rule := range rules {
		names, err := alerts.Metrics(rule.Expr)
		if err != nil || strings.Count(rule.Expr, `job="`+job+`"`) != len(names) {
			t.Errorf("%s: %v, or it is not about %s", rule.Expr, err, job)
		}
	}
}

// rulesOf returns the rules that a release installs.
func rulesOf(t *testing.T, objects []*unstructured.Unstructured) (rules []alerts.Rule) {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() != "PrometheusRule" {
			continue
		}
		spec, err := json.Marshal(object.Object["spec"])
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "rules.yaml")
		write(t, file, string(spec))
		if rules, err = alerts.Load(file); err != nil {
			t.Fatal(err)
		}
	}
	return rules
}
