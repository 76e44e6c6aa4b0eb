package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Metrics counts what all sources see.
type Metrics struct {
	seen     *prometheus.CounterVec
	gaps     *prometheus.CounterVec
	restarts *prometheus.CounterVec
}

// NewMetrics registers the counters.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Name: "kubeferry_" + name, Help: help}, labels)
	}
	return &Metrics{
		seen:     counter("deltas_seen_total", "Deltas that were seen, those of snapshots and inferred ones included.", "resource", "type"),
		gaps:     counter("watch_gaps_total", "Gap records that were sent: changes are missing, or may be missing.", watchLabels()...),
		restarts: counter("watch_restarts_total", "How often the watch was opened again, for whatever reason it had ended.", watchLabels()...),
	}
}

// watchMetrics are the counters of one watch, with their labels set.
type watchMetrics struct {
	seen           map[delta.Type]prometheus.Counter
	gaps, restarts prometheus.Counter
}

// watchLabels are those of the metrics of a watch. The namespace is empty if it is of the whole cluster.
func watchLabels() []string { return []string{"source", "resource", "namespace"} }

func (m *Metrics) forWatch(source string, gvr schema.GroupVersionResource, namespace string) *watchMetrics {
	name := delta.ResourceName(gvr)
	w := &watchMetrics{
		seen:     map[delta.Type]prometheus.Counter{},
		gaps:     m.gaps.WithLabelValues(source, name, namespace),
		restarts: m.restarts.WithLabelValues(source, name, namespace),
	}
	for _, t := range delta.Types() {
		w.seen[t] = m.seen.WithLabelValues(name, string(t))
	}
	return w
}

// forget removes the counters of a watch that has ended.
func (m *Metrics) forget(source string, gvr schema.GroupVersionResource, namespace string) {
	m.gaps.DeleteLabelValues(source, delta.ResourceName(gvr), namespace)
	m.restarts.DeleteLabelValues(source, delta.ResourceName(gvr), namespace)
}

// RegisterGauges registers what is read off the state of watches at each scrape.
func RegisterGauges(registry prometheus.Registerer, watches func() []WatchStatus) {
	registry.MustRegister(prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) {
		for _, s := range watches() {
			gauge := func(name, help string, value float64) {
				desc := prometheus.NewDesc("kubeferry_watch_"+name, help, watchLabels(), nil)
				metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, s.Source, s.Resource, s.Namespace)
			}
			if s.LastActivity.IsZero() {
				s.LastActivity = s.Since // of its state
			}
			if s.State != StateMissing { // no watch is open: nothing is to be expected
				gauge("last_activity_seconds", "Time since the API server last sent something, bookmarks included. A watch of a resource that does not exist does not have this metric.", max(0, time.Since(s.LastActivity).Seconds()))
			}
			gauge("known_objects", "Objects in the known set.", float64(s.Known))
			gauge("blocked", "1 while a full backlog holds the watch back.", number(s.Blocked))
			gauge("ready", "1 once the watch has read what exists. 0 while the resource cannot be read.", number(s.Ready))
		}
	}))
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
