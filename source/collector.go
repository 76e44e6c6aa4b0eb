package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// NewCollector makes a collector of what is read off the sources' status at each scrape.
func NewCollector(sources []*Source) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubeferry_watch_"+name, help, []string{"resource"}, nil)
	}
	return &collector{
		sources:  sources,
		activity: desc("last_activity_seconds", "Time since the API server last sent anything, bookmarks included, on the quietest watch of the resource; since the start of the process if never."),
		known:    desc("known_objects", "Objects that exist at the position."),
		blocked:  desc("blocked", "1 if a full backlog holds a watch of the resource back."),
		ready:    desc("ready", "1 if every watch of the resource has read its state (see /readyz)."),
		started:  time.Now(),
	}
}

type collector struct {
	sources                         []*Source
	activity, known, ready, blocked *prometheus.Desc
	started                         time.Time
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(descs chan<- *prometheus.Desc) {
	descs <- c.activity
	descs <- c.known
	descs <- c.ready
	descs <- c.blocked
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(metrics chan<- prometheus.Metric) {
	type sum struct {
		idle           time.Duration
		known          int
		ready, blocked bool
	}
	sums := map[string]sum{}
	for _, source := range c.sources {
		for _, status := range source.Status() {
			s, seen := sums[status.Resource]
			last := status.LastActivity
			if last.IsZero() {
				last = c.started
			}
			s.idle = max(s.idle, time.Since(last))
			s.known += status.Known
			s.ready = status.Ready && (s.ready || !seen)
			s.blocked = s.blocked || status.Blocked
			sums[status.Resource] = s
		}
	}
	for resource, s := range sums {
		gauge := func(desc *prometheus.Desc, value float64) {
			metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, resource)
		}
		gauge(c.activity, s.idle.Seconds())
		gauge(c.known, float64(s.known))
		gauge(c.ready, number(s.ready))
		gauge(c.blocked, number(s.blocked))
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
