package alerts_test

import (
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
)

// TestLimits holds every metric at the last value that is good, then one at the first that is bad: its alert fires once that has
// lasted as long as the rule says, and no other does. That an exporter has these metrics is shown in test/e2e and test/deploy.
func TestLimits(t *testing.T) {
	const step = 30 * time.Second
	rules, err := alerts.Load(filepath.Join("..", "..", "..", "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	type samples map[string]float64
	const forever = time.Hour
	const window = 9 * time.Minute // in which a range of ten minutes holds the last sample before an increase, here behind a restart
	tests := map[string]struct {
		good, bad    samples
		from, to     time.Duration // it fires so long after it is bad
		of           string        // the labels of the alert
		neverMatters samples
	}{
		"KubeferryChangeWaits": {
			good: samples{`kubeferry_oldest_unsettled_seconds{pipeline="p"}`: 300}, bad: samples{`kubeferry_oldest_unsettled_seconds{pipeline="p"}`: 301},
			to: forever, of: `{pipeline="p"}`,
		},
		"KubeferrySinkFails": {
			good: samples{`kubeferry_gate_open{pipeline="p"}`: 1}, bad: samples{`kubeferry_gate_open{pipeline="p"}`: 0},
			from: 3 * time.Minute, to: forever, of: `{pipeline="p"}`,
		},
		"KubeferryFilterFails": {
			good: samples{`kubeferry_filter_errors_total{pipeline="p"}`: 5}, bad: samples{`kubeferry_filter_errors_total{pipeline="p"}`: 1},
			to: window, of: `{pipeline="p"}`,
		},
		"KubeferryDeadLetter": {
			good: samples{`kubeferry_records_dead_total{pipeline="p",reason="r"}`: 5}, bad: samples{`kubeferry_records_dead_total{pipeline="p",reason="r"}`: 1},
			to: window, of: `{pipeline="p", reason="r"}`,
		},
		"KubeferryDeadLettersFull": {
			good: samples{`kubeferry_dead_letters_full`: 0}, bad: samples{`kubeferry_dead_letters_full`: 1},
			to: forever, of: `{}`,
		},
		"KubeferryHistoryRefused": {
			good: samples{`kubeferry_watch_gaps_total{resource="v1/pods"}`: 5}, bad: samples{`kubeferry_watch_gaps_total{resource="v1/pods"}`: 1},
			to: window, of: `{resource="v1/pods"}`,
		},
		"KubeferryWatchNotReady": {
			good: samples{`kubeferry_watch_ready{resource="v1/pods"}`: 1}, bad: samples{`kubeferry_watch_ready{resource="v1/pods"}`: 0},
			from: 3 * time.Minute, to: forever, of: `{resource="v1/pods"}`,
		},
		"KubeferryWatchSilent": {
			good: samples{`kubeferry_watch_last_activity_seconds{resource="v1/pods"}`: 300},
			bad:  samples{`kubeferry_watch_last_activity_seconds{resource="v1/pods"}`: 301},
			to:   forever, of: `{resource="v1/pods"}`,
			neverMatters: samples{ // without bookmarks they may be silent for long
				`kubeferry_watch_last_activity_seconds{resource="v1/events"}`:               9999,
				`kubeferry_watch_last_activity_seconds{resource="events.k8s.io/v1/events"}`: 9999,
				`kubeferry_watch_last_activity_seconds{resource="v1/secrets"}`:              9999, // a full backlog holds it back
				`kubeferry_watch_blocked{resource="v1/secrets"}`:                            1,
				`kubeferry_watch_blocked{resource="v1/pods"}`:                               0,
			},
		},
		"KubeferryNoLeader": {
			good: samples{`kubeferry_leader{instance="a",job="j",namespace="n"}`: 1}, bad: samples{`kubeferry_leader{instance="a",job="j",namespace="n"}`: 0},
			from: time.Minute, to: forever, of: `{job="j", namespace="n"}`,
			neverMatters: samples{
				`kubeferry_leader{instance="b",job="j",namespace="n"}`:               0,
				`kubeferry_leader{instance="other",job="j",namespace="elsewhere"}`:   1,
				`kubeferry_standbys_in_sync{instance="b",job="j",namespace="n"}`:     0,
				`kubeferry_standbys_in_sync{instance="other",job="j",namespace="n"}`: 1,
			},
		},
		"KubeferryNoStandby": {
			good: samples{`kubeferry_standbys_in_sync{instance="a",job="j",namespace="n"}`: 1},
			bad:  samples{`kubeferry_standbys_in_sync{instance="a",job="j",namespace="n"}`: 0},
			from: 5 * time.Minute, to: forever, of: `{instance="a", job="j", namespace="n"}`,
		},
		"KubeferryBacklogFull": {
			good: samples{`kubeferry_backlog_bytes{pipeline="p"}`: 89}, bad: samples{`kubeferry_backlog_bytes{pipeline="p"}`: 91},
			from: 10 * time.Minute, to: forever, of: `{pipeline="p"}`,
			neverMatters: samples{`kubeferry_backlog_max_bytes{pipeline="p"}`: 100},
		},
		"KubeferryLogFull": {
			good: samples{`kubeferry_log_bytes{pipeline="p"}`: 79}, bad: samples{`kubeferry_log_bytes{pipeline="p"}`: 81},
			to: forever, of: `{pipeline="p"}`,
			neverMatters: samples{`kubeferry_log_max_bytes{pipeline="p"}`: 100},
		},
	}
	good := samples{}
	for _, test := range tests {
		maps.Copy(good, test.good)
		maps.Copy(good, test.neverMatters)
	}
	for _, rule := range rules {
		t.Run(rule.Alert, func(t *testing.T) {
			test, ok := tests[rule.Alert]
			if !ok {
				t.Fatal("no limits are given")
			}
			evaluator := alerts.NewEvaluator(rules)
			begun := time.Unix(1_800_000_000, 0)
			bad := maps.Clone(good)
			maps.Copy(bad, test.bad)
			for at := -20 * time.Minute; at <= 20*time.Minute; at += step {
				scraped, want := good, []string(nil)
				if at >= 0 {
					scraped = bad
				}
				if at < -10*time.Minute { // a counter that begins with more than 0, in a new Pod
					want = []string{`KubeferryDeadLetter{pipeline="p", reason="r"}`, `KubeferryFilterFails{pipeline="p"}`, `KubeferryHistoryRefused{resource="v1/pods"}`}
				}
				if at >= test.from && at <= test.to {
					want = []string{rule.Alert + test.of}
				}
				if got, err := evaluator.Scrape(t.Context(), begun.Add(at), scraped); err != nil || !slices.Equal(got, want) {
					t.Fatalf("%v after it is bad: got %q, %v, want %q", at, got, err, want)
				}
			}
		})
	}
}
