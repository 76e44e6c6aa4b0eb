package app

import (
	"time"

	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// status is what /status shows.
type status struct {
	Version string    `json:"version"`
	Cluster string    `json:"cluster"`
	Started time.Time `json:"started"`
	// StateError says why the state directory cannot be written, if so.
	StateError string               `json:"stateError,omitempty"`
	Watches    []source.WatchStatus `json:"watches"`
	Pipelines  []pipelineStatus     `json:"pipelines"`
}

type pipelineStatus struct {
	Name      string            `json:"name"`
	Received  uint64            `json:"received"`
	Restored  uint64            `json:"restored"`
	Filtered  uint64            `json:"filtered"`
	Delivered uint64            `json:"delivered"`
	Dead      map[string]uint64 `json:"dead"`
	Waiting   uint64            `json:"waiting"`
	Gaps      uint64            `json:"gapsWaiting"`
	Bytes     int64             `json:"bytes"`
	// OnDisk counts what is in the log only, of what is waiting.
	OnDisk   uint64    `json:"onDisk"`
	LogBytes int64     `json:"logBytes"`
	Oldest   time.Time `json:"oldest,omitzero"`
	// Gate is "open", or "closed" while the sink as a whole fails, since ClosedSince.
	Gate        string    `json:"gate"`
	ClosedSince time.Time `json:"closedSince,omitzero"`
	LastError   string    `json:"lastError,omitempty"`
}

func newStatus(version, cluster string, started time.Time, parts func() ([]*source.Source, []*pipeline.Pipeline, *state)) status {
	sources, pipelines, kept := parts()
	s := status{Version: version, Cluster: cluster, Started: started}
	if kept != nil {
		if err := kept.err(); err != nil {
			s.StateError = err.Error()
		}
	}
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
			Name: p.Name(), Received: stats.Received, Restored: stats.Restored, Filtered: stats.Filtered, Delivered: stats.Delivered,
			Dead: stats.Dead, Waiting: stats.Waiting, Gaps: stats.GapsWaiting, Bytes: stats.Bytes,
			OnDisk: stats.OnDisk, LogBytes: stats.LogBytes, Oldest: stats.Oldest,
			Gate: gate, ClosedSince: stats.ClosedSince, LastError: stats.LastError,
		})
	}
	return s
}
