package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RegisterGauges registers what is read off the state of watches at each scrape.
func RegisterGauges(registry prometheus.Registerer, watches func() []WatchStatus) {
	registry.MustRegister(gauges(watches))
}

// gauges are the metrics of watches.
type gauges func() []WatchStatus

// Describe implements prometheus.Collector.
func (g gauges) Describe(descs chan<- *prometheus.Desc) { prometheus.DescribeByCollect(g, descs) }

// Collect implements prometheus.Collector.
func (g gauges) Collect(metrics chan<- prometheus.Metric) {
	for _, s := range g() {
		gauge := func(name, help string, value float64) {
			desc := prometheus.NewDesc("kubeferry_watch_"+name, help, watchLabels(), nil)
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, s.Source, s.Resource, s.Namespace)
		}
		if s.LastActivity.IsZero() {
			s.LastActivity = s.Since // of its state
		}
		if s.State != StateMissing { // no watch is open: nothing is to be expected
			gauge("last_activity_seconds", "Time since the API server last sent anything, bookmarks included; since its state changed if never. None for a resource that does not exist.", max(0, time.Since(s.LastActivity).Seconds()))
		}
		gauge("known_objects", "Objects that exist at the position.", float64(s.Known))
		gauge("blocked", "1 if a full backlog holds the watch back.", number(s.Blocked))
		gauge("ready", "1 if the watch has read its state (see /readyz).", number(s.Ready))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
