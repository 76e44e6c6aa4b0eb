package admin

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/workqueue"
)

// RegisterClientGo adds client-go's own metrics: its requests to the API server and its workqueues. client-go takes
// its providers once per process, so that only the first registry gets them.
func RegisterClientGo(registry prometheus.Registerer) {
	factory := promauto.With(registry)
	metrics.Register(metrics.RegisterOpts{
		RequestLatency: requestLatency{factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "rest_client_request_duration_seconds", Help: "Time of requests to the API server, by verb; watches until they are open.",
			Buckets: []float64{.005, .025, .1, .25, .5, 1, 2, 4, 8, 15, 30, 60},
		}, []string{"verb"})},
		RequestResult: requestResult{factory.NewCounterVec(prometheus.CounterOpts{
			Name: "rest_client_requests_total", Help: "Requests to the API server, by status code and method.",
		}, []string{"code", "method"})},
	})
	workqueue.SetProvider(newQueueMetrics(factory))
}

type requestLatency struct{ *prometheus.HistogramVec }

func (r requestLatency) Observe(_ context.Context, verb string, _ url.URL, latency time.Duration) {
	r.WithLabelValues(verb).Observe(latency.Seconds())
}

type requestResult struct{ *prometheus.CounterVec }

func (r requestResult) Increment(_ context.Context, code, method, _ string) {
	r.WithLabelValues(code, method).Inc()
}

// queueMetrics are the metrics of workqueues, under the names that every controller has.
type queueMetrics struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

var _ workqueue.MetricsProvider = (*queueMetrics)(nil)

func newQueueMetrics(factory promauto.Factory) *queueMetrics {
	labels := []string{"name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return factory.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_" + name, Help: help}, labels)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: "workqueue_" + name, Help: help}, labels)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return factory.NewHistogramVec(prometheus.HistogramOpts{
			Name: "workqueue_" + name, Help: help, Buckets: prometheus.ExponentialBuckets(1e-5, 10, 8),
		}, labels)
	}
	return &queueMetrics{
		depth:      gauge("depth", "Objects in the queue."),
		unfinished: gauge("unfinished_work_seconds", "Seconds of work in progress."),
		longest:    gauge("longest_running_processor_seconds", "Seconds that the oldest work in progress has taken."),
		adds:       counter("adds_total", "Objects added."),
		retries:    counter("retries_total", "Objects added again after a failure."),
		latency:    histogram("queue_duration_seconds", "Seconds that an object stays in the queue."),
		work:       histogram("work_duration_seconds", "Seconds that an object takes once it has left the queue."),
	}
}

func (q *queueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return q.depth.WithLabelValues(name)
}

func (q *queueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return q.adds.WithLabelValues(name)
}

func (q *queueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return q.latency.WithLabelValues(name)
}

func (q *queueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return q.work.WithLabelValues(name)
}

func (q *queueMetrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.unfinished.WithLabelValues(name)
}

func (q *queueMetrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return q.longest.WithLabelValues(name)
}

func (q *queueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return q.retries.WithLabelValues(name)
}
