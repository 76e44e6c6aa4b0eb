package pipeline

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
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
	Sink         sinks.Sink
	SinkName     string
	Limits       sinks.Limits
	// Slots bounds the calls of a sink that several pipelines share; nil for no bound.
	Slots *sinks.Share
	// Permit is entered before each call of the sink; nil permits all.
	Permit Permit
	// DeadLetter takes the records that can never be delivered.
	DeadLetter DeadLetter
}

// Retry is how a failed object is tried again.
type Retry struct {
	// Initial is the first delay; it doubles up to Max. Each is shorter by chance, by up to a fifth.
	Initial time.Duration `yaml:"initial" doc:"delay before the second attempt, doubled each time"`
	Max     time.Duration `yaml:"max" doc:"longest delay"`
	// Attempts after which a record goes to the dead letter; 0 means as long as it takes.
	Attempts int `yaml:"attempts" doc:"attempts before a record goes to the dead letter; 0: no limit"`
}

// Pipeline delivers deltas to one sink. Reserve and ReserveGap may be called from several goroutines.
type Pipeline struct {
	options Options
	shaper  *shape.Shaper
	encoder shape.Encoder
	logger  *slog.Logger
	metrics *metrics
	now     func() time.Time

	// wake wakes the dispatcher when something changed: a ready object, the breaker, a batch to retry.
	wake chan struct{}
	// wakeAt is how many ready objects wake the dispatcher.
	wakeAt atomic.Int64
	// drained wakes Drain when nothing is waiting.
	drained chan struct{}
	batches chan *batch
	slots   chan struct{}
	large   chan struct{} // has room for one: the large object that is on its way in

	mu      sync.Mutex // guards what follows
	backlog *backlog
	breaker breaker
	retries []*batch               // failed as a whole, in the order of their failure
	refused map[delta.Ref]struct{} // objects refused for good since the last success
	// failedCalls counts the calls that failed since the last success, and failedAlone holds the objects that failed alone.
	failedCalls   int
	failedAlone   map[delta.Ref]struct{}
	lastDelivered lastDelivered
	lastSuccess   time.Time
	wholeCall     time.Duration // how long the last call took of which all was delivered
	// largest is the size of the largest record that was delivered.
	largest int
	// recordsBlamedAt is when an isolated object, or a part of a call, last failed while others got through, or the breaker was reset.
	recordsBlamedAt time.Time
	// apartCalls counts the calls under way of suspect namespaces, aloneCalls those of isolated objects among them; apartNext is set
	// if the last batch was of such a namespace.
	apart                  apartQueue
	apartCalls, aloneCalls sinks.PerNamespace
	apartNext              bool
	budget                 memoryBudget
	log                    logState
	counts                 Counts
	beat                   time.Time // when the dispatcher last went round
	lastErr                string
}

// New makes a pipeline; nothing is delivered before Run.
func New(options Options, metrics *Metrics, logger *slog.Logger) *Pipeline {
	p := &Pipeline{
		options: options,
		encoder: shape.NewEncoder(options.Options),
		logger:  logger.With("pipeline", options.Name, "sink", options.SinkName),
		now:     time.Now,
		wake:    make(chan struct{}, 1),
		drained: make(chan struct{}, 1),
		batches: make(chan *batch),
		slots:   make(chan struct{}, options.Limits.Concurrency),
		large:   make(chan struct{}, 1),
		counts:  Counts{Dead: map[string]uint64{}, filteredBy: make([]uint64, len(options.Filters)), snapshots: map[string]snapshotCount{}},
	}
	p.beat = p.now()
	p.lastSuccess = p.beat
	p.lastDelivered = newLastDelivered()
	p.refused, p.failedAlone = map[delta.Ref]struct{}{}, map[delta.Ref]struct{}{}
	p.apart.names = map[string]*namespaceQueue{}
	p.breaker = newBreaker(options.Retry)
	p.backlog = newBacklog(options.Name, options.Retry, func(queued int) {
		if int64(queued) >= p.wakeAt.Load() {
			p.signal()
		}
	})
	p.budget.freed = make(chan struct{})
	p.restore(options.Logged, options.Flows)
	p.metrics = metrics.forPipeline(p)
	p.shaper = shape.New(options.Options, metrics.forShaper(options.Options), p.logger)
	return p
}

// Shaper decides what the pipeline sends of a change.
func (p *Pipeline) Shaper() *shape.Shaper { return p.shaper }

// Name of the pipeline.
func (p *Pipeline) Name() string { return p.options.Name }

// SinkName is the name of the pipeline's sink.
func (p *Pipeline) SinkName() string { return p.options.SinkName }

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
