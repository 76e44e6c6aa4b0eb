package source

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Metrics counts what all sources see, per resource.
type Metrics struct {
	seen     *prometheus.CounterVec
	gaps     *prometheus.CounterVec
	restarts *prometheus.CounterVec
}

// NewMetrics registers the counters.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		seen: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_deltas_seen_total", Help: "Changes observed, snapshots and inferred ones included.",
		}, []string{"resource", "type"}),
		gaps: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_watch_gaps_total", Help: "Stretches of history that the API server refused to give.",
		}, []string{"resource"}),
		restarts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_watch_restarts_total", Help: "Watches opened after the first, for whatever reason the last one ended.",
		}, []string{"resource"}),
	}
	registry.MustRegister(m.seen, m.gaps, m.restarts)
	return m
}

// watchMetrics are the counters of one watch, with their labels set.
type watchMetrics struct {
	seen           map[delta.Type]prometheus.Counter
	gaps, restarts prometheus.Counter
}

func (m *Metrics) forResource(gvr schema.GroupVersionResource) *watchMetrics {
	name := delta.ResourceName(gvr)
	w := &watchMetrics{
		seen:     map[delta.Type]prometheus.Counter{},
		gaps:     m.gaps.WithLabelValues(name),
		restarts: m.restarts.WithLabelValues(name),
	}
	for _, t := range delta.Types() {
		w.seen[t] = m.seen.WithLabelValues(name, string(t))
	}
	return w
}
