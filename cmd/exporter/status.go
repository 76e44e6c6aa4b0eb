package main

import (
	"time"

	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// status is what /status shows.
type status struct {
	Version   string               `json:"version"`
	Cluster   string               `json:"cluster"`
	Started   time.Time            `json:"started"`
	Watches   []source.WatchStatus `json:"watches"`
	Pipelines []pipelineStatus     `json:"pipelines"`
}

type pipelineStatus struct {
	Name      string            `json:"name"`
	Received  uint64            `json:"received"`
	Filtered  uint64            `json:"filtered"`
	Delivered uint64            `json:"delivered"`
	Dead      map[string]uint64 `json:"dead"`
	Waiting   uint64            `json:"waiting"`
	Bytes     int64             `json:"bytes"`
	Oldest    time.Time         `json:"oldest,omitzero"`
	// Gate is "open", or "closed" while the sink as a whole fails, since ClosedSince.
	Gate        string    `json:"gate"`
	ClosedSince time.Time `json:"closedSince,omitzero"`
	LastError   string    `json:"lastError,omitempty"`
}

func newStatus(cluster string, started time.Time, sources []*source.Source, pipelines []*pipeline.Pipeline) status {
	s := status{Version: versionName(), Cluster: cluster, Started: started}
	for _, from := range sources {
		s.Watches = append(s.Watches, from.Status()...)
	}
	for _, p := range pipelines {
		stats := p.Stats()
		gate := "open"
		if !stats.GateOpen {
			gate = "closed"
		}
		s.Pipelines = append(s.Pipelines, pipelineStatus{
			Name: p.Name(), Received: stats.Received, Filtered: stats.Filtered, Delivered: stats.Delivered,
			Dead: stats.Dead, Waiting: stats.Waiting, Bytes: stats.Bytes, Oldest: stats.Oldest,
			Gate: gate, ClosedSince: stats.ClosedSince, LastError: stats.LastError,
		})
	}
	return s
}
