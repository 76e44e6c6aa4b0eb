package source

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// RegisterGauges registers what is read off the state of the sources' watches at each scrape, per resource.
func RegisterGauges(registry prometheus.Registerer, sources []*Source) {
	watches := map[string][]*watcher{}
	for _, source := range sources {
		for _, w := range source.watches {
			resource := delta.ResourceName(w.collection.resource)
			watches[resource] = append(watches[resource], w)
		}
	}
	started := time.Now()
	for resource, watches := range watches {
		gauge := func(name, help string, first float64, add func(sum float64, s WatchStatus) float64) {
			options := prometheus.GaugeOpts{Name: "kubeferry_watch_" + name, Help: help, ConstLabels: prometheus.Labels{"resource": resource}}
			registry.MustRegister(prometheus.NewGaugeFunc(options, func() float64 {
				sum := first
				for _, w := range watches {
					sum = add(sum, w.health.status())
				}
				return sum
			}))
		}
		gauge("last_activity_seconds", "Time since the API server last sent anything, bookmarks included, on the quietest watch of the resource; since the start of the process if never.", 0,
			func(sum float64, s WatchStatus) float64 {
				if s.LastActivity.IsZero() {
					s.LastActivity = started
				}
				return max(sum, time.Since(s.LastActivity).Seconds())
			})
		gauge("known_objects", "Objects that exist at the position.", 0,
			func(sum float64, s WatchStatus) float64 { return sum + float64(s.Known) })
		gauge("blocked", "1 if a full backlog holds a watch of the resource back.", 0,
			func(sum float64, s WatchStatus) float64 { return max(sum, number(s.Blocked)) })
		gauge("ready", "1 if every watch of the resource has read its state (see /readyz).", 1,
			func(sum float64, s WatchStatus) float64 { return min(sum, number(s.Ready)) })
	}
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
