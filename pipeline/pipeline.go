package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kubeferry/kubeferry/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Options make a pipeline.
type Options struct {
	Name string
	// Cluster is part of every id.
	Cluster string
	Filters []Filter
	// KeepManagedFields leaves metadata.managedFields in the objects.
	KeepManagedFields bool
	// Redactor replaces the data of Secrets; nil leaves them as they are.
	Redactor *Redactor
	Format   Format
	// MaxBytes bounds the backlog in memory; a delta that finds it full waits, and its watch with it.
	MaxBytes int64
	Retry    Retry
	Sink     sinks.Sink
	SinkName string
	Limits   sinks.Limits
	// DeadLetter takes the records that can never be delivered.
	DeadLetter DeadLetter
}

// Retry says how a failed object is tried again.
type Retry struct {
	// Initial is the first delay; it doubles up to Max.
	Initial, Max time.Duration
	// Attempts after which a record goes to the dead letter; 0 means as long as it takes.
	Attempts int
}

// Pipeline delivers deltas to one sink. Delta and Gap may be called from several goroutines.
type Pipeline struct {
	options Options
	encoder encoder
	logger  *slog.Logger
	metrics *metrics
	now     func() time.Time

	// space is what is left of MaxBytes.
	space *semaphore.Weighted
	// wake tells the dispatcher that something changed: a ready object, the gate, a unit to retry.
	wake chan struct{}
	// drained tells Drain that nothing is waiting.
	drained chan struct{}
	units   chan *unit
	slots   chan struct{}

	mu      sync.Mutex // guards what follows
	backlog *backlog
	gate    gate
	retries []*unit // failed as a whole, in the order of their failure
	refused int     // records refused for good since the last success
	ledger  ledger
	beat    time.Time // when the dispatcher last went round
	lastErr string
}

// New makes a pipeline; nothing is delivered before Run.
func New(options Options, metrics *Metrics, logger *slog.Logger) *Pipeline {
	p := &Pipeline{
		options: options,
		encoder: encoder{cluster: options.Cluster, pipeline: options.Name, format: options.Format},
		logger:  logger.With("pipeline", options.Name, "sink", options.SinkName),
		now:     time.Now,
		space:   semaphore.NewWeighted(options.MaxBytes),
		wake:    make(chan struct{}, 1),
		drained: make(chan struct{}, 1),
		units:   make(chan *unit),
		slots:   make(chan struct{}, options.Limits.Concurrency),
		ledger:  newLedger(),
	}
	p.beat = p.now()
	p.gate = newGate(options.Retry)
	p.backlog = newBacklog(options.Name, options.Retry, p.signal)
	p.metrics = metrics.forPipeline(p)
	return p
}

// Name of the pipeline.
func (p *Pipeline) Name() string { return p.options.Name }

// Delta takes one delta. It blocks while the backlog is full, and fails only when ctx ends before the delta was
// taken.
func (p *Pipeline) Delta(ctx context.Context, d *delta.Delta) error {
	if !p.passes(d) {
		p.mu.Lock()
		p.ledger.received++
		p.ledger.filtered++
		p.mu.Unlock()
		return nil
	}
	d, err := p.prepare(d)
	i := &item{delta: d, ref: d.Ref(), watch: d.Watch, observed: d.Observed, size: d.Size(), err: err}
	return p.take(ctx, i)
}

// Gap takes a gap; the deltas of its watch that follow wait until it is settled. It blocks as Delta does.
func (p *Pipeline) Gap(ctx context.Context, g *delta.Gap) error {
	return p.take(ctx, &item{gap: g, ref: g.Ref(), watch: g.Watch, observed: g.Observed, size: gapSize})
}

func (p *Pipeline) take(ctx context.Context, i *item) error {
	i.size = min(i.size, p.options.MaxBytes) // one that is larger than the bound may pass, alone
	if err := p.space.Acquire(ctx, i.size); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ledger.took(i)
	p.backlog.add(i)
	return nil
}

// prepare applies what is always on. What cannot be redacted is replaced by its identity, and goes to the dead
// letter with the error.
func (p *Pipeline) prepare(d *delta.Delta) (*delta.Delta, error) {
	object := d.Object
	if !p.options.KeepManagedFields {
		object = object.WithoutManagedFields()
	}
	var err error
	if p.options.Redactor != nil && isSecret(d.Resource) {
		object, err = p.options.Redactor.Secret(object)
	}
	if object == d.Object {
		return d, err
	}
	prepared := *d
	prepared.Object = object
	return &prepared, err
}

func (p *Pipeline) passes(d *delta.Delta) bool {
	for _, filter := range p.options.Filters {
		if !filter.Pass(d) {
			return false
		}
	}
	return true
}

// Run delivers until ctx ends, and returns when no delivery is under way.
func (p *Pipeline) Run(ctx context.Context) {
	defer p.backlog.queue.ShutDown()
	var workers sync.WaitGroup
	for range p.options.Limits.Concurrency {
		workers.Go(func() {
			for unit := range p.units {
				p.deliver(ctx, unit)
				<-p.slots
				p.signal()
			}
		})
	}
	p.dispatch(ctx)
	close(p.units)
	workers.Wait()
}

// Drain waits until nothing is left to deliver, or ctx ends, and returns how many deltas and gaps are left. The sources must
// have stopped, and Run must be running.
func (p *Pipeline) Drain(ctx context.Context) uint64 {
	for {
		stats := p.Stats()
		left := stats.Waiting + stats.GapsWaiting
		if left == 0 || ctx.Err() != nil {
			return left
		}
		select {
		case <-p.drained:
		case <-ctx.Done():
		}
	}
}

// signal wakes the dispatcher; it never blocks.
func (p *Pipeline) signal() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
