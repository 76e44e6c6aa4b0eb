package deploy_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
)

// testReplicaAlerts: the alerts about replicas name metrics that there are, and fire when these say what is bad. Those about a single
// exporter are in test/e2e.
func testReplicaAlerts(t *testing.T, leader, standby *exporter) {
	t.Helper()
	rules, err := alerts.Load(filepath.Join("..", "..", "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	leads, inSync := series("kubeferry_leader", "leader"), series("kubeferry_standbys_in_sync", "leader")
	leader.await(t, "/metrics", "a standby is in sync", func(status int, body string) bool {
		return status == http.StatusOK && value(body, "kubeferry_leader") == "1" && value(body, "kubeferry_standbys_in_sync") == "1"
	})
	standby.await(t, "/metrics", "the other does not lead", func(status int, body string) bool {
		return status == http.StatusOK && value(body, "kubeferry_leader") == "0" && value(body, "kubeferry_standbys_in_sync") == "0"
	})
	for _, test := range []struct {
		name           string
		leads, standby float64
		after          time.Duration
		want           []string
	}{
		{"well", 1, 1, time.Hour, nil},
		{"no leader, for a moment", 0, 0, 30 * time.Second, nil},
		{"no leader", 0, 0, 2 * time.Minute, []string{`KubeferryNoLeader{job="kubeferry", namespace="kubeferry"}`}},
		{"no standby, during a rollout", 1, 0, 4 * time.Minute, nil},
		{"no standby", 1, 0, 6 * time.Minute, []string{`KubeferryNoStandby{instance="leader", job="kubeferry", namespace="kubeferry"}`}},
	} {
		evaluator := alerts.NewEvaluator(rules)
		at, fired := time.Now(), []string(nil)
		for elapsed := time.Duration(0); elapsed <= test.after; elapsed += 30 * time.Second {
			samples := map[string]float64{
				leads: test.leads, inSync: test.standby,
				series("kubeferry_leader", "standby"): 0, series("kubeferry_standbys_in_sync", "standby"): 0,
			}
			if fired, err = evaluator.Scrape(t.Context(), at.Add(elapsed), samples); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(fired, test.want) {
			t.Errorf("%s: %q fired, want %q", test.name, fired, test.want)
		}
	}
}

// series is the name of a metric of one replica as Prometheus has it.
func series(metric, instance string) string {
	return fmt.Sprintf(`%s{instance="%s",job="kubeferry",namespace="kubeferry"}`, metric, instance)
}

// value is that of a metric without labels on /metrics, empty if there is none.
func value(body, metric string) string {
	for line := range strings.Lines(body) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == metric {
			return value
		}
	}
	return ""
}
