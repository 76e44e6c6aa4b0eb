package app

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// stalledAfter is how long a dispatcher may not run, or a sink's call go on after its time-out, before /healthz fails. An idle
// dispatcher runs every two seconds.
const stalledAfter = 30 * time.Second

// readyInterval is how often whenReady looks.
const readyInterval = 20 * time.Millisecond

// health answers the probes, from before the program's parts are made.
type health struct {
	version, cluster string
	started          time.Time
	starting         []source.WatchStatus    // the watches while nothing runs
	replica          atomic.Pointer[replica] // nil without leaderElection
	running          atomic.Pointer[parts]   // nil while the program starts, or stands by
}

// parts are what the program is made of.
type parts struct {
	sources   []*source.Source
	sinks     map[string]OpenSink
	pipelines []*pipeline.Pipeline
	state     *state
	rates     *rates
	enricher  *enricher // nil without
}

func (h *health) probes() admin.Probes {
	return admin.Probes{Healthy: h.healthy, Ready: h.ready, Notes: h.unreadable, Status: func(rates bool) any { return h.status(rates) }}
}

func (h *health) healthy() error {
	running := h.running.Load()
	if replica := h.replica.Load(); replica != nil && replica.stuck.Load() {
		return errors.New("the disk hangs")
	}
	if running == nil {
		return nil
	}
	for _, p := range running.pipelines {
		if since := time.Since(p.Beat()); since > stalledAfter {
			return fmt.Errorf("pipeline %q has not moved for %v", p.Name(), since.Round(time.Second))
		}
	}
	for name, sink := range running.sinks {
		if overdue := sink.calls.overdue(); overdue > stalledAfter {
			return fmt.Errorf("a delivery to sink %q goes on %v after its time-out", name, overdue.Round(time.Second))
		}
	}
	return nil
}

func (h *health) ready() error {
	running := h.running.Load()
	if replica := h.replica.Load(); running == nil && replica != nil {
		return replica.ready()
	}
	if running == nil {
		return errors.New("starting: waiting for the API server")
	}
	errs := []error{running.state.err()}
	for _, w := range running.watches() {
		if w.Awaited {
			errs = append(errs, notReady(&w))
		}
	}
	return errors.Join(errs...)
}

// unreadable lists the resources that cannot be read now, and for which /readyz does not wait.
func (h *health) unreadable() (lines []string) {
	running := h.running.Load()
	if running == nil {
		return nil
	}
	for _, w := range running.watches() {
		if !w.Ready && !w.Awaited {
			lines = append(lines, notReady(&w).Error())
		}
	}
	return lines
}

// watches are those of the sources, also before these are made.
func (h *health) watches() []source.WatchStatus {
	if running := h.running.Load(); running != nil {
		return running.watches()
	}
	return h.starting
}

func (p *parts) watches() (all []source.WatchStatus) {
	for _, s := range p.sources {
		all = append(all, s.Status()...)
	}
	return all
}

// whenReady calls a function once the program is ready, unless ctx ends before.
func (h *health) whenReady(ctx context.Context, call func()) {
	for h.ready() != nil {
		select {
		case <-time.After(readyInterval):
		case <-ctx.Done():
			return
		}
	}
	call()
}

func notReady(w *source.WatchStatus) error {
	text := fmt.Sprintf("source %q: %s", w.Source, w.Resource)
	if w.Namespace != "" {
		text += " in namespace " + w.Namespace
	}
	text += ": " + string(w.State)
	if w.Error != "" {
		text += ": " + w.Error
	}
	return errors.New(text)
}

// registerBuild registers a metric of the build, as Prometheus exporters have it.
func registerBuild(registry prometheus.Registerer, version string) {
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubeferry_build_info", Help: "1. The labels say which version this is, and which Go built it.",
		ConstLabels: prometheus.Labels{"version": version, "goversion": runtime.Version()},
	}, func() float64 { return 1 }))
}

// status is what /status shows.
type status struct {
	Version string    `json:"version"`
	Cluster string    `json:"cluster"`
	Started time.Time `json:"started"`
	Now     time.Time `json:"now"`
	// Problems are what needs attention, in words.
	Problems []string `json:"problems"`
	// Replica is this process among those that share a Lease; nil without leaderElection.
	Replica *replicaStatus `json:"replica,omitempty"`
	// StateError is why the state directory cannot be written, if so.
	StateError string `json:"stateError,omitempty"`
	// Offset is what is added to resource versions to make sequences; 0 without a state directory, and on a standby.
	Offset uint64 `json:"offset,omitempty"`
	// DeadLetters are those of the pipelines without a sink for them; nil without a state directory.
	DeadLetters *checkpoint.DeadLetterStatus `json:"deadLetters,omitempty"`
	Watches     []source.WatchStatus         `json:"watches"`
	// Enrichment are the watches of the objects that Events are about.
	Enrichment []source.WatchStatus `json:"enrichment,omitempty"`
	Pipelines  []pipelineStatus     `json:"pipelines"`
	starting   error
}

type pipelineStatus struct {
	Name string `json:"name"`
	Sink string `json:"sink"`
	pipeline.Stats
	// State is "available", or "away" while the sink is.
	State string `json:"state"`
	// Rates are those of the last minutes, with /status?rates only.
	Rates *pipelineRates `json:"rates,omitempty"`
}

// status returns the status. It includes the rates if rates is set.
func (h *health) status(rates bool) (s status) {
	s = status{Version: h.version, Cluster: h.cluster, Started: h.started, Now: time.Now()}
	defer func() { s.Problems = problems(&s) }()
	if replica := h.replica.Load(); replica != nil {
		s.Replica = replica.status()
	}
	running := h.running.Load()
	if running == nil {
		if s.Replica == nil || s.Replica.Role == "leader" {
			s.starting = h.ready()
		}
		return s
	}
	if err := running.state.err(); err != nil {
		s.StateError = err.Error()
	}
	if running.state.dead != nil {
		dead := running.state.dead.Status()
		s.DeadLetters, s.Offset = &dead, running.state.offset.Current()
	}
	s.Watches = running.watches()
	if running.enricher != nil {
		s.Enrichment = running.enricher.watches.Status()
	}
	for _, p := range running.pipelines {
		one := pipelineStatus{Name: p.Name(), Sink: p.SinkName(), Stats: p.Stats()}
		if one.State = "available"; !one.AwaySince.IsZero() {
			one.State = "away"
		}
		s.Pipelines = append(s.Pipelines, one)
	}
	if rates {
		for n, current := range running.rates.current() {
			s.Pipelines[n].Rates = &current
		}
	}
	return s
}

// oldAfter is how long a change may wait before that is a problem; the alert has the same.
const oldAfter = 5 * time.Minute

// problems lists what needs attention.
func problems(s *status) []string {
	found := []string{} // not null in JSON
	add := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }
	if s.starting != nil {
		add("%v", s.starting)
	}
	if s.StateError != "" {
		add("%s", s.StateError)
	}
	if r := s.Replica; r != nil {
		switch {
		case r.Error != "":
			add("replica: %s", r.Error)
		case r.Role == "leader" && !r.Delivering:
			add("the Lease could not be renewed in time: deliveries pause")
		case r.Role == "leader" && r.StandbysInSync == 0:
			add("no standby has the leader's state")
		case r.Role == "standby" && !r.InSync:
			add("this standby does not have the leader's state")
		}
	}
	for _, w := range s.Watches {
		switch {
		case w.Blocked:
			add("%v: held back by a full backlog", notReady(&w))
		case !w.Ready || w.State == source.StateFailing || w.State == source.StateRefused:
			add("%v", notReady(&w))
		}
	}
	for _, p := range s.Pipelines {
		switch {
		case !p.AwaySince.IsZero():
			add("pipeline %q: sink %s fails: %s", p.Name, p.Sink, p.LastError)
		case !p.Oldest.IsZero() && s.Now.Sub(p.Oldest) > oldAfter:
			add("pipeline %q: a change has waited for %v", p.Name, s.Now.Sub(p.Oldest).Truncate(time.Minute))
		}
	}
	if d := s.DeadLetters; d != nil && d.Full {
		add("no room for dead letters: replay them, or raise deadLetters.maxBytes")
	} else if d != nil && d.Entries > 0 {
		add("dead letters: %d, until `kubeferry replay` sends them", d.Entries)
	}
	return found
}
