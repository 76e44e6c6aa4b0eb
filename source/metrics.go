package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Metrics counts what all sources see.
type Metrics struct{ seen *prometheus.CounterVec }

// NewMetrics registers the counters.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	return &Metrics{promauto.With(registry).NewCounterVec(prometheus.CounterOpts{
		Name: "kubeferry_deltas_seen_total", Help: "Deltas that were seen, those of snapshots and inferred ones included.",
	}, []string{"resource", "type"})}
}

// of are the counters of a resource.
func (m *Metrics) of(gvr schema.GroupVersionResource) map[delta.Type]prometheus.Counter {
	seen := map[delta.Type]prometheus.Counter{}
	for _, t := range delta.Types() {
		seen[t] = m.seen.WithLabelValues(delta.ResourceName(gvr), string(t))
	}
	return seen
}

// RegisterWatches registers what is read off the state of watches at each scrape.
func RegisterWatches(registry prometheus.Registerer, watches func() []WatchStatus) {
	registry.MustRegister(prometheus.CollectorFunc(func(metrics chan<- prometheus.Metric) {
		for _, s := range watches() {
			metric := func(kind prometheus.ValueType, name, help string, value float64) {
				desc := prometheus.NewDesc("kubeferry_watch_"+name, help, []string{"source", "resource", "namespace"}, nil)
				metrics <- prometheus.MustNewConstMetric(desc, kind, value, s.Source, s.Resource, s.Namespace)
			}
			gauge := func(name, help string, value float64) { metric(prometheus.GaugeValue, name, help, value) }
			metric(prometheus.CounterValue, "gaps_total", "Gap records that were sent: changes are missing, or may be missing.", float64(s.Gaps))
			metric(prometheus.CounterValue, "restarts_total", "How often the watch was opened again, for whatever reason it had ended.", float64(s.Restarts))
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
