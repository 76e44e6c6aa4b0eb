package pipeline

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/sinks"
)

// Metrics are those of all pipelines. The ledger is collected in one piece for each, so that every scrape balances.
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

// collector reads a pipeline's ledger.
type collector struct {
	pipeline *Pipeline
	now      func() time.Time

	received, restored, filtered, delivered, dead, gaps *prometheus.Desc
	backlog, bytes, logBytes, gate, oldest              *prometheus.Desc
}

func newCollector(p *Pipeline) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("kubeferry_"+name, help, labels, prometheus.Labels{"pipeline": p.options.Name})
	}
	return &collector{
		pipeline:  p,
		now:       p.now,
		received:  desc("deltas_received_total", "Deltas taken from the sources."),
		restored:  desc("deltas_restored_total", "Deltas taken from the log at start."),
		filtered:  desc("deltas_filtered_total", "Deltas that a filter kept back."),
		delivered: desc("records_delivered_total", "Deltas that the sink acknowledged."),
		dead:      desc("records_dead_total", "Deltas written to the dead letter.", "reason"),
		gaps:      desc("gaps_settled_total", "Gap records acknowledged by the sink or written to the dead letter."),
		backlog:   desc("backlog_deltas", "Deltas not settled yet. received + restored = filtered + delivered + dead + this."),
		bytes:     desc("backlog_bytes", "Memory that the backlog takes, as it counts towards backlog.maxBytes."),
		logBytes:  desc("log_bytes", "Disk that the backlog's log takes."),
		gate:      desc("gate_open", "1 unless the sink as a whole fails and only probes are sent."),
		oldest:    desc("oldest_unsettled_seconds", "Age of the oldest change not settled; 0 if there is none."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{
		c.received, c.restored, c.filtered, c.delivered, c.dead, c.gaps, c.backlog, c.bytes, c.logBytes, c.gate, c.oldest,
	} {
		descs <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	s := c.pipeline.Stats()
	counter := func(desc *prometheus.Desc, value uint64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), labels...)
	}
	gauge := func(desc *prometheus.Desc, value float64) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	counter(c.received, s.Received)
	counter(c.restored, s.Restored)
	counter(c.filtered, s.Filtered)
	counter(c.delivered, s.Delivered)
	counter(c.gaps, s.GapsDelivered+s.GapsDead)
	for _, reason := range deadReasons() {
		counter(c.dead, s.Dead[reason], reason)
	}
	gauge(c.backlog, float64(s.Waiting))
	gauge(c.bytes, float64(s.Bytes))
	gauge(c.logBytes, float64(s.LogBytes))
	open, age := 0.0, 0.0
	if s.GateOpen {
		open = 1
	}
	if !s.Oldest.IsZero() {
		age = max(0, c.now().Sub(s.Oldest).Seconds())
	}
	gauge(c.gate, open)
	gauge(c.oldest, age)
}
