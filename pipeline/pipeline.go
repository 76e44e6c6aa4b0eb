package pipeline

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kubeferry/kubeferry/internal/delta"
	sched "github.com/kubeferry/kubeferry/pipeline/flow"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// Options make a pipeline.
type Options struct {
	// Options are what is made of a change before it waits.
	shape.Options
	// MaxBytes bounds the backlog in memory; a delta that finds it full waits, and its watch with it, unless Spill
	// is set.
	MaxBytes int64
	// Log is where the backlog outlives the process; nil keeps it in memory only.
	Log Log
	// Logged is what the log holds at start, and Flows are the flows of it.
	Logged delta.LogSize
	Flows  []string
	// Spill keeps deltas beyond MaxBytes in the log only, up to MaxDiskBytes.
	Spill        bool
	MaxDiskBytes int64
	Retry        Retry
	Rate         Rate
	Sink         sinks.Sink
	SinkName     string
	Limits       sinks.Limits
	// Slots bounds the calls of a sink that several pipelines share; nil for no bound.
	Slots *sched.Slots
	// Permit is entered before each call of the sink; nil permits all.
	Permit Permit
	// DeadLetter takes the records that can never be delivered.
	DeadLetter DeadLetter
}

// Retry is how a failed object is tried again.
type Retry struct {
	// Initial is the first delay; it doubles up to Max. Each is shorter or longer by chance, by up to a fifth.
	Initial time.Duration `yaml:"initial" min:"1ms" doc:"wait before the second attempt. It doubles with each further one"`
	Max     time.Duration `yaml:"max" doc:"longest wait between two attempts"`
	// Attempts after which a record becomes a dead letter; 0 means as often as it takes.
	Attempts int `yaml:"attempts" min:"0" doc:"how often a record is tried before it becomes a dead letter. 0 means as often as it takes. Of the attempts while the sink is away, at most one counts"`
}

// Rate bounds how many records a pipeline sends. What is over waits.
type Rate struct {
	// PerSecond is how many it sends on average; 0 is no bound.
	PerSecond float64 `yaml:"perSecond" required:"true" min:"0.001" max:"1000000" doc:"records a second, on average. 0.1 means one in ten seconds"`
	// Burst is how many it sends at once; 0 is PerSecond, but at least one.
	Burst int `yaml:"burst" min:"1" doc:"most records at once. The default is perSecond, but at least 1"`
}

// limiter returns the limiter of a rate, nil for none.
func (r Rate) limiter() *rate.Limiter {
	if r.PerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(r.PerSecond), cmp.Or(r.Burst, max(1, int(r.PerSecond))))
}

// Pipeline delivers deltas to one sink. Reserve and ReserveGap may be called from several goroutines.
type Pipeline struct {
	options Options
	shaper  *shape.Shaper
	encoder shape.Encoder
	logger  *slog.Logger
	metrics *metrics
	now     func() time.Time

	// wake wakes the dispatcher when something changed: a record was enqueued, a call has ended, or the sink has a free slot.
	wake    chan struct{}
	batches chan *batch
	large   chan struct{} // has room for one: the large object that is on its way in
	pool    sync.Pool     // of *batch

	limiter *rate.Limiter // nil without a rate

	mu        sync.Mutex // guards what follows
	scheduler *sched.Scheduler
	// unloadable are the items of failing objects that are in memory. They leave it once a commit has written them to the log, if there is one.
	unloadable map[*item]struct{}
	// queued counts the records that were enqueued since the dispatcher looked, and wakeAt is how many of them wake it.
	queued, wakeAt int
	budget         memoryBudget
	log            logState
	counts         Counts
	lastDelivered  lastDelivered
	awaySince      time.Time // zero while the sink is available
	beat           time.Time // when the dispatcher last went round
	lastErr        string
}

// New makes a pipeline; nothing is delivered before Run.
func New(options Options, metrics *Metrics, logger *slog.Logger) *Pipeline {
	p := &Pipeline{
		options: options,
		encoder: shape.NewEncoder(options.Options),
		limiter: options.Rate.limiter(),
		logger:  logger.With("pipeline", options.Name, "sink", options.SinkName),
		now:     time.Now,
		wake:    make(chan struct{}, 1),
		batches: make(chan *batch),
		large:   make(chan struct{}, 1),
		counts:  Counts{Dead: map[string]uint64{}, filteredBy: make([]uint64, len(options.Filters)+1), watches: map[string]*watchCount{}, firstOfRun: options.Logged.Next},
	}
	p.beat = p.now()
	p.lastDelivered = make(lastDelivered, lastDeliveredObjects)
	p.unloadable = map[*item]struct{}{}
	slots := options.Slots
	if slots == nil {
		slots = sched.NewSlots(options.Limits.Concurrency)
	}
	p.scheduler = sched.New(sched.Options{
		Records: options.Limits.MaxRecords, OnePerObject: options.Limits.OnePerKey, Calls: options.Limits.Concurrency,
		Share: slots.Share(p.signal), Initial: options.Retry.Initial, Max: options.Retry.Max, Attempts: options.Retry.Attempts,
		Random: rand.Float64,
	})
	p.budget.freed = make(chan struct{})
	p.restore(options.Logged, options.Flows)
	p.metrics = metrics.forPipeline(p)
	p.shaper = shape.New(options.Options, metrics.forShaper(options.Options), p.logger)
	return p
}

// Shaper decides what the pipeline sends of a change.
func (p *Pipeline) Shaper() *shape.Shaper { return p.shaper }

// Name returns the name of the pipeline.
func (p *Pipeline) Name() string { return p.options.Name }

// SinkName is the name of the pipeline's sink.
func (p *Pipeline) SinkName() string { return p.options.SinkName }

// drainPoll is how often Drain looks whether something is left.
const drainPoll = 5 * time.Millisecond

// Drain waits until nothing is left to deliver, or ctx ends, and returns how many deltas and gaps are left. The sources must
// have stopped, and Run must be running.
func (p *Pipeline) Drain(ctx context.Context) uint64 {
	for {
		p.mu.Lock()
		left := p.counts.Waiting + p.counts.GapsWaiting
		p.mu.Unlock()
		if left == 0 || ctx.Err() != nil {
			return left
		}
		select {
		case <-time.After(drainPoll):
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
