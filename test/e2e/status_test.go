package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// status is what /status shows.
type status struct {
	Problems            []string
	Watches, Enrichment []watchStatus
	Pipelines           []struct {
		Name                                           string
		Received, Filtered, Delivered, Waiting, OnDisk uint64
		Dead                                           map[string]uint64
		Bytes                                          int64
		State, LastError                               string
	}
}

// watchStatus is what /status shows of a watch.
type watchStatus struct {
	Source, Resource, Namespace, State, Error, Position string
	Known                                               int
	Ready, Blocked                                      bool
}

// Status reads /status.
func (e *exporter) Status() status {
	e.tb.Helper()
	code, body := e.Get("/status")
	if code != http.StatusOK {
		e.tb.Fatalf("/status: %d", code)
	}
	var s status
	if err := json.Unmarshal([]byte(body), &s); err != nil {
		e.tb.Fatalf("/status: %v\n%s", err, body)
	}
	return s
}

// metrics are the samples of one scrape, by name and labels as they are written.
type metrics map[string]float64

// Metrics scrapes /metrics.
func (e *exporter) Metrics() metrics {
	e.tb.Helper()
	code, body := e.Get("/metrics")
	if code != http.StatusOK {
		e.tb.Fatalf("/metrics: %d: %s", code, body)
	}
	m := metrics{}
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		space := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		value, err := strconv.ParseFloat(strings.TrimSpace(line[space+1:]), 64)
		if err != nil {
			e.tb.Fatalf("/metrics: %q: %v", line, err)
		}
		m[line[:space]] = value
	}
	return m
}

// sum adds up the samples of a metric that have all of the labels, each given as name=value. A metric without such
// a sample is -1, so that a misspelled one is not taken for zero.
func (m metrics) sum(name string, labels ...string) float64 {
	sum, found := 0.0, false
next:
	for key, value := range m {
		bare, rest, _ := strings.Cut(key, "{")
		if bare != name {
			continue
		}
		for _, label := range labels {
			k, v, _ := strings.Cut(label, "=")
			if !strings.Contains(rest, k+`="`+v+`"`) {
				continue next
			}
		}
		sum, found = sum+value, true
	}
	if !found {
		return -1
	}
	return sum
}

// Answered is how many requests the API server has answered with a status code so far, or <error> if it did not answer.
func (e *exporter) Answered(code string) float64 {
	e.tb.Helper()
	return max(0, e.Metrics().sum("rest_client_requests_total", "code="+code))
}

// WaitAnswered returns when Answered is at least n.
func (e *exporter) WaitAnswered(code string, n float64) {
	e.tb.Helper()
	eventually(e.tb, wide, fmt.Sprintf("%v requests with the result %s", n, code), func() error {
		if got := e.Answered(code); got < n {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

// checkLedgers compares what each pipeline took with what became of it, in one scrape.
func (e *exporter) checkLedgers() {
	e.tb.Helper()
	pipelines := e.Status().Pipelines
	m := e.Metrics() // after the status: the metrics of what it lists exist
	for _, p := range pipelines {
		label := "pipeline=" + p.Name
		get := func(name string) float64 { return m.sum("kubeferry_"+name, label) }
		in := get("deltas_received_total") + get("deltas_restored_total")
		out := get("deltas_filtered_total") + get("records_delivered_total") + get("records_dead_total") + get("backlog_deltas")
		if in != out {
			e.tb.Errorf("pipeline %s: received + restored = %v, filtered + delivered + dead + waiting = %v", p.Name, in, out)
		}
	}
}

// WaitSettled returns when every pipeline has taken as much as the others and nothing waits.
func (e *exporter) WaitSettled(d time.Duration) {
	e.tb.Helper()
	eventually(e.tb, d, "everything is settled", func() error {
		pipelines := e.Status().Pipelines
		for _, p := range pipelines {
			if p.Waiting > 0 || p.Received != pipelines[0].Received {
				return fmt.Errorf("%+v", pipelines)
			}
		}
		return nil
	})
}

// WaitWaiting returns when every pipeline has at least n changes waiting; with 0, when none has any.
func (e *exporter) WaitWaiting(d time.Duration, n uint64) {
	e.tb.Helper()
	eventually(e.tb, d, fmt.Sprintf("%d waiting", n), func() error {
		for _, p := range e.Status().Pipelines {
			if p.Waiting < n || n == 0 && p.Waiting > 0 {
				return fmt.Errorf("%+v", p)
			}
		}
		return nil
	})
}

// WaitSink returns when the sink of a pipeline is available or away, in the metrics and on /status.
func (e *exporter) WaitSink(d time.Duration, pipeline string, available bool) {
	e.tb.Helper()
	want, state := 0.0, "away"
	if available {
		want, state = 1, "available"
	}
	eventually(e.tb, d, "the sink is "+state, func() error {
		if got := e.Metrics().sum("kubeferry_sink_available", "pipeline="+pipeline); got != want {
			return fmt.Errorf("sink_available is %v", got)
		}
		for _, p := range e.Status().Pipelines {
			if p.Name == pipeline && p.State != state {
				return fmt.Errorf("/status says %s", p.State)
			}
		}
		return nil
	})
}
