package app

import (
	"context"
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
	last      []pipeline.Counts
	steps     []pipelineRates
}

// pipelineRates are the counts of one pipeline, the oldest step first.
type pipelineRates struct {
	StepSeconds int `json:"stepSeconds"`
	// Steps is how many there are in the end.
	Steps int `json:"steps"`
	// Taken passed the filters.
	Taken     []uint64 `json:"taken"`
	Delivered []uint64 `json:"delivered"`
}

func newRates(pipelines []*pipeline.Pipeline) *rates {
	r := &rates{pipelines: pipelines, steps: make([]pipelineRates, len(pipelines))}
	for _, p := range pipelines {
		r.last = append(r.last, p.Stats().Counts)
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
		now, last, s := p.Stats().Counts, r.last[n], &r.steps[n]
		s.Taken = append(s.Taken, now.Received-now.Filtered-(last.Received-last.Filtered))
		s.Delivered = append(s.Delivered, now.Delivered-last.Delivered)
		if old := len(s.Taken) - rateSteps; old > 0 {
			s.Taken, s.Delivered = s.Taken[old:], s.Delivered[old:]
		}
		r.last[n] = now
	}
}

func (r *rates) of(p *pipeline.Pipeline) *pipelineRates {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := range r.pipelines {
		if r.pipelines[n] == p { // what is behind the lengths may be appended to meanwhile
			return &pipelineRates{int(rateStep.Seconds()), rateSteps, r.steps[n].Taken, r.steps[n].Delivered}
		}
	}
	return nil
}
