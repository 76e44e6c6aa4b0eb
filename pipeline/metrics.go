package pipeline

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

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
			Name: "kubeferry_delivery_seconds", Help: "Time from the observation of a change to its acknowledgement by the sink.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 1800},
		}, []string{"pipeline"}),
		errors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_sink_errors_total", Help: "Records that a sink did not acknowledge, by reason, each attempt counted.",
		}, []string{"pipeline", "reason"}),
		filters: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_filter_errors_total", Help: "Evaluations of a filter's expression that failed, whatever onError made of it.",
		}, []string{"pipeline"}),
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubeferry_enrichment_lookups_total", Help: "Times that the metadata of the object was looked up that an Event is about: known (hit) or not (miss).",
		}, []string{"pipeline", "result"}),
	}
	registry.MustRegister(m.seconds, m.errors, m.filters, m.lookups)
	return m
}

// metrics are those of one pipeline, with their labels set.
type metrics struct {
	seconds      prometheus.Observer
	errors       map[sinks.Reason]prometheus.Counter
	filterErrors prometheus.Counter
	hits, misses prometheus.Counter // nil in a pipeline without an Enricher
}

func (m *Metrics) forPipeline(p *Pipeline) *metrics {
	name := p.options.Name
	m.registry.MustRegister(newCollector(p))
	own := &metrics{
		seconds: m.seconds.WithLabelValues(name), errors: map[sinks.Reason]prometheus.Counter{},
		filterErrors: m.filters.WithLabelValues(name),
	}
	for _, reason := range sinks.Reasons() {
		own.errors[reason] = m.errors.WithLabelValues(name, string(reason))
	}
	if p.options.Enricher != nil {
		own.hits, own.misses = m.lookups.WithLabelValues(name, "hit"), m.lookups.WithLabelValues(name, "miss")
	}
	return own
}

// delivered takes no time below zero, which a clock that was set back since the last run leads to: the sum of a
// histogram may not go down.
func (m *metrics) delivered(after time.Duration) { m.seconds.Observe(max(0, after.Seconds())) }

func (m *metrics) failed(reason sinks.Reason) {
	counter, ok := m.errors[reason]
	if !ok {
		counter = m.errors[sinks.ReasonOther]
	}
	counter.Inc()
}

// collector reads the values of a pipeline's metrics from one [Stats].
type collector struct {
	pipeline *Pipeline
	values   []metric
	dead     *prometheus.Desc
}

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Stats) float64
}

func newCollector(p *Pipeline) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kubeferry_"+name, help, labels, prometheus.Labels{"pipeline": p.options.Name})
	}
	c := &collector{pipeline: p, dead: desc("records_dead_total", "Deltas written to the dead letter.", "reason")}
	counter := func(name, help string, count func(Stats) uint64) {
		c.values = append(c.values, metric{desc(name, help), prometheus.CounterValue, func(s Stats) float64 { return float64(count(s)) }})
	}
	gauge := func(name, help string, get func(Stats) float64) {
		c.values = append(c.values, metric{desc(name, help), prometheus.GaugeValue, get})
	}
	counter("deltas_received_total", "Deltas taken from the sources.", func(s Stats) uint64 { return s.Received })
	counter("deltas_restored_total", "Deltas taken from the log at start.", func(s Stats) uint64 { return s.Restored })
	counter("deltas_filtered_total", "Deltas that a filter kept back.", func(s Stats) uint64 { return s.Filtered })
	counter("records_delivered_total", "Deltas that the sink acknowledged.", func(s Stats) uint64 { return s.Delivered })
	counter("gaps_settled_total", "Gap records acknowledged by the sink or written to the dead letter.",
		func(s Stats) uint64 { return s.GapsDelivered + s.GapsDead })
	gauge("backlog_deltas", "Deltas not settled yet. received + restored = filtered + delivered + dead + this.",
		func(s Stats) float64 { return float64(s.Waiting) })
	gauge("backlog_bytes", "Memory that the backlog takes, as it counts towards backlog.maxBytes.",
		func(s Stats) float64 { return float64(s.Bytes) })
	gauge("log_bytes", "Disk that the backlog's log takes.", func(s Stats) float64 { return float64(s.LogBytes) })
	gauge("gate_open", "1 unless the sink as a whole fails and only probes are sent.", func(s Stats) float64 {
		if s.GateOpen {
			return 1
		}
		return 0
	})
	gauge("oldest_unsettled_seconds", "Age of the oldest change not settled; 0 if there is none.", func(s Stats) float64 {
		if s.Oldest.IsZero() {
			return 0
		}
		return max(0, p.now().Sub(s.Oldest).Seconds())
	})
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, descs) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.pipeline.Stats()
	for _, v := range c.values {
		metrics <- prometheus.MustNewConstMetric(v.desc, v.kind, v.value(s))
	}
	for _, reason := range deadReasons() {
		metrics <- prometheus.MustNewConstMetric(c.dead, prometheus.CounterValue, float64(s.Dead[reason]), reason)
	}
}
