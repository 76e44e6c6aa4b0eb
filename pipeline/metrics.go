package pipeline

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// Metrics are those of all pipelines. The counts of a pipeline are collected together, so that they add up in each scrape.
type Metrics struct {
	registry prometheus.Registerer
	seconds  *prometheus.HistogramVec
	errors   *prometheus.CounterVec
	filters  *prometheus.CounterVec
	lookups  *prometheus.CounterVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) *Metrics {
	m := &Metrics{
		registry: registry,
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubeferry_delivery_seconds", Help: "Time from when a change was first seen until the sink acknowledged it.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{"pipeline"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_sink_errors_total", Help: "Records that the sink did not acknowledge, counted once for each attempt.",
		}, []string{"pipeline", "reason"}),
		filters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_filter_errors_total", Help: "Evaluations of a filter's expression that failed.",
		}, []string{"pipeline"}),
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_enrichment_lookups_total", Help: "Lookups of the metadata of objects that Events are about: a hit if it was known, else a miss.",
		}, []string{"pipeline", "result"}),
	}
	registry.MustRegister(m.seconds, m.errors, m.filters, m.lookups)
	return m
}

// metrics are those of one pipeline, with their labels set.
type metrics struct {
	seconds prometheus.Observer
	errors  *prometheus.CounterVec // by reason
}

func (m *Metrics) forPipeline(p *Pipeline) *metrics {
	name := p.options.Name
	m.registry.MustRegister(prometheus.CollectorFunc(p.collect))
	own := &metrics{m.seconds.WithLabelValues(name), m.errors.MustCurryWith(prometheus.Labels{"pipeline": name})}
	for _, reason := range sinks.Reasons() { // so that a zero shows as zero
		own.errors.WithLabelValues(string(reason))
	}
	return own
}

// forShaper returns what the shaper of a pipeline counts.
func (m *Metrics) forShaper(options shape.Options) shape.Metrics {
	own := shape.Metrics{FilterErrors: m.filters.WithLabelValues(options.Name)}
	if options.Enricher != nil {
		own.Hits, own.Misses = m.lookups.WithLabelValues(options.Name, "hit"), m.lookups.WithLabelValues(options.Name, "miss")
	}
	return own
}

// delivered counts a negative duration as zero: after the clock was set back, the sum of the histogram would go down.
func (m *metrics) delivered(after time.Duration) { m.seconds.Observe(max(0, after.Seconds())) }

// collect sends the values of the pipeline's metrics, all from one [Stats].
func (p *Pipeline) collect(metrics chan<- prometheus.Metric) {
	labels := prometheus.Labels{"pipeline": p.options.Name}
	counter := func(name, help string, value uint64) {
		desc := prometheus.NewDesc("kubeferry_"+name, help, nil, labels)
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value))
	}
	gauge := func(name, help string, value float64) {
		desc := prometheus.NewDesc("kubeferry_"+name, help, nil, labels)
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	s := p.Stats()
	available, oldest := 0.0, 0.0
	if s.AwaySince.IsZero() {
		available = 1
	}
	if !s.Oldest.IsZero() {
		oldest = max(0, p.now().Sub(s.Oldest).Seconds())
	}
	counter("deltas_received_total", "Deltas that came from the watches.", s.Received)
	counter("deltas_restored_total", "Deltas that were in the log when kubeferry started.", s.Restored)
	counter("records_delivered_total", "Deltas that the sink acknowledged.", s.Delivered)
	counter("gaps_settled_total", "Gap records that the sink acknowledged, or that became dead letters.", s.GapsSettled)
	gauge("backlog_deltas", "Deltas that wait in the backlog.", float64(s.Waiting))
	gauge("backlog_bytes", "Memory that the backlog takes. backlog.maxBytes limits it.", float64(s.Bytes))
	gauge("backlog_max_bytes", "backlog.maxBytes: the limit of kubeferry_backlog_bytes.", float64(p.options.MaxBytes))
	gauge("log_bytes", "Disk space that the log of the backlog takes.", float64(s.LogBytes))
	if p.options.Spill {
		gauge("log_max_bytes", "backlog.maxDiskBytes: the limit of kubeferry_log_bytes.", float64(p.options.MaxDiskBytes))
	}
	gauge("sink_available", "1, or 0 while the sink is away: it takes nothing, and kubeferry sends single records until it takes one.", available)
	gauge("oldest_unsettled_seconds", "Age of the oldest change that is not settled. 0 if there is none.", oldest)
	filtered := prometheus.NewDesc("kubeferry_deltas_filtered_total", "Deltas that a filter left out. The label is the filter's place in the configuration, such as filters[0], or body if format custom made null of it. It is empty if the pipeline has no filter.", []string{"filter"}, labels)
	last := len(s.filteredBy) - 1
	for i, n := range s.filteredBy[:last] {
		metrics <- prometheus.MustNewConstMetric(filtered, prometheus.CounterValue, float64(n), fmt.Sprintf("filters[%d]", i))
	}
	switch {
	case p.options.Body != nil:
		metrics <- prometheus.MustNewConstMetric(filtered, prometheus.CounterValue, float64(s.filteredBy[last]), "body")
	case last == 0:
		metrics <- prometheus.MustNewConstMetric(filtered, prometheus.CounterValue, 0, "")
	}
	dead := prometheus.NewDesc("kubeferry_records_dead_total", "Deltas that became dead letters.", []string{"reason"}, labels)
	for _, reason := range deadReasons() {
		metrics <- prometheus.MustNewConstMetric(dead, prometheus.CounterValue, float64(s.Dead[reason]), reason)
	}
}
