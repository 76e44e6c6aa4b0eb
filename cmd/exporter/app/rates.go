package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/pipeline"
)

const (
	rateStep  = 5 * time.Second
	rateSteps = 120 // ten minutes
)

// rates counts what the pipelines did in each of the last steps, for the page.
type rates struct {
	pipelines []*pipeline.Pipeline
	mu        sync.Mutex // guards what follows
	steps     []pipelineRates
}

// pipelineRates are the counts of one pipeline, the oldest step first.
type pipelineRates struct {
	StepSeconds float64 `json:"stepSeconds"`
	// Steps is how many there are in the end.
	Steps int `json:"steps"`
	// Taken passed the filters.
	Taken     []uint64 `json:"taken"`
	Delivered []uint64 `json:"delivered"`

	last pipeline.Counts
}

func newRates(pipelines []*pipeline.Pipeline) *rates {
	r := &rates{pipelines: pipelines}
	for _, p := range pipelines {
		r.steps = append(r.steps, pipelineRates{StepSeconds: rateStep.Seconds(), Steps: rateSteps, last: p.Stats().Counts})
	}
	return r
}

// run counts until ctx ends.
func (r *rates) run(ctx context.Context) {
	ticker := time.NewTicker(rateStep)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			r.step()
		case <-ctx.Done():
			return
		}
	}
}

func (r *rates) step() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n, p := range r.pipelines {
		now, s := p.Stats().Counts, &r.steps[n]
		s.Taken = append(s.Taken, now.Received-now.Filtered-(s.last.Received-s.last.Filtered))
		s.Delivered = append(s.Delivered, now.Delivered-s.last.Delivered)
		if old := len(s.Taken) - rateSteps; old > 0 {
			s.Taken, s.Delivered = s.Taken[old:], s.Delivered[old:]
		}
		s.last = now
	}
}

// current returns the rates of each pipeline. Steps may be added behind its slices meanwhile.
func (r *rates) current() []pipelineRates {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.steps)
}
