package admin

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/client-go/tools/metrics"
)

// RegisterClientGo adds client-go's own metrics: its requests to the API server. client-go takes its providers once per
// process, so that only the first registry gets them.
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
}

type requestLatency struct{ *prometheus.HistogramVec }

func (r requestLatency) Observe(_ context.Context, verb string, _ url.URL, latency time.Duration) {
	r.WithLabelValues(verb).Observe(latency.Seconds())
}

type requestResult struct{ *prometheus.CounterVec }

func (r requestResult) Increment(_ context.Context, code, method, _ string) {
	r.WithLabelValues(code, method).Inc()
}
