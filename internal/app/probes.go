package app

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// stalledAfter is how long a pipeline's dispatcher may not go round before the process counts as stuck; it does so
// every two seconds even when it has nothing to do.
const stalledAfter = 30 * time.Second

// probes answer for the program, from before its parts are made.
type probes struct {
	version string
	cluster string
	started time.Time

	mu        sync.Mutex // guards what follows
	sources   []*source.Source
	pipelines []*pipeline.Pipeline
	state     *state
}

// set says what the parts are.
func (p *probes) set(sources []*source.Source, pipelines []*pipeline.Pipeline, kept *state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sources, p.pipelines, p.state = sources, pipelines, kept
}

func (p *probes) parts() ([]*source.Source, []*pipeline.Pipeline, *state) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sources, p.pipelines, p.state
}

func (p *probes) admin() admin.Probes {
	return admin.Probes{Healthy: p.healthy, Ready: p.ready, Status: func() any {
		return newStatus(p.version, p.cluster, p.started, p.parts)
	}}
}

func (p *probes) healthy() error {
	_, pipelines, _ := p.parts()
	for _, p := range pipelines {
		if since := time.Since(p.Stats().Beat); since > stalledAfter {
			return fmt.Errorf("pipeline %q has not moved for %v", p.Name(), since.Round(time.Second))
		}
	}
	return nil
}

func (p *probes) ready() error {
	sources, _, kept := p.parts()
	if kept == nil {
		return errors.New("starting: waiting for the API server")
	}
	errs := []error{kept.err()}
	for _, s := range sources {
		for _, w := range s.Status() {
			if !w.Ready {
				errs = append(errs, notReady(&w))
			}
		}
	}
	return errors.Join(errs...)
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
