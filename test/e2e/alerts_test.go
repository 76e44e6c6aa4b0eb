package e2e_test

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// prometheus scrapes an exporter and evaluates the rules of the chart.
type prometheus struct {
	*alerts.Evaluator
	tb testing.TB
	at time.Time // of the last scrape
}

func newPrometheus(tb testing.TB, rules []alerts.Rule) *prometheus {
	return &prometheus{Evaluator: alerts.NewEvaluator(rules), tb: tb, at: time.Now()}
}

func documentedAlerts(tb testing.TB) []alerts.Rule {
	tb.Helper()
	root, err := programs.Root()
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := alerts.Load(filepath.Join(root, "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

// Scrape takes one scrape half a minute after the last, and returns what fires.
func (p *prometheus) Scrape(m metrics) []string {
	p.tb.Helper()
	p.at = p.at.Add(30 * time.Second)
	firing, err := p.Evaluator.Scrape(p.tb.Context(), p.at, m)
	if err != nil {
		p.tb.Fatal(err)
	}
	return firing
}

// Hold scrapes the same samples for a while, and returns what fired at any time.
func (p *prometheus) Hold(m metrics, d time.Duration) (fired []string) {
	p.tb.Helper()
	for end := p.at.Add(d); p.at.Before(end); {
		fired = append(fired, p.Scrape(m)...)
	}
	slices.Sort(fired)
	return slices.Compact(fired)
}

// checkAlerts takes the scrape of an exporter in which all is well, and makes it bad for one alert after the other.
func checkAlerts(t *testing.T, well metrics) {
	bad := map[string]float64{
		"KubeferryChangeWaits": 301, "KubeferrySinkFails": 0, "KubeferryFilterFails": 1, "KubeferryDeadLetter": 1,
		"KubeferryDeadLettersFull": 1, "KubeferryHistoryRefused": 1, "KubeferryWatchNotReady": 0, "KubeferryWatchSilent": 301,
		"KubeferryBacklogFull": 64 << 20, "KubeferryLogFull": 10 << 30,
	}
	rules := documentedAlerts(t)
	for _, rule := range rules {
		if strings.Contains(rule.Expr, "kubeferry_leader") {
			continue // it needs replicas: test/deploy has them
		}
		t.Run(rule.Alert, func(t *testing.T) {
			p := newPrometheus(t, rules)
			if fired := p.Hold(well, 2*time.Minute); len(fired) > 0 {
				t.Errorf("%v fired though all is well", fired)
			}
			series, err := p.Series(rule)
			if err != nil || len(series) == 0 {
				t.Fatalf("%s: the exporter has no such metric, %v", rule.Expr, err)
			}
			value, ok := bad[rule.Alert]
			if !ok {
				t.Fatal("no value of its metric is known to be bad")
			}
			changed := maps.Clone(well)
			changed[series[0]] = value
			_, labels, _ := strings.Cut(series[0], "{")
			want := rule.Alert + "{" + strings.ReplaceAll(strings.TrimSuffix(labels, "}"), ",", ", ") + "}"
			if fired := p.Hold(changed, 11*time.Minute); !slices.Equal(fired, []string{want}) {
				t.Errorf("%s is %v: got %q, want %s", series[0], value, fired, want)
			}
		})
	}
}
