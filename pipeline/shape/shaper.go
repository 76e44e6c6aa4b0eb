// Package shape decides what a pipeline sends of a change: whether the filters let it pass, what transforms and redaction make of the
// object, the difference from the previous version, and the record in the pipeline's format.
//
// A [Shaper] runs once for each delta, before the delta waits. So the backlog and its log hold what will be sent, and nothing
// unredacted. An [Encoder] makes the record when the delta is sent.
package shape

import (
	"context"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Options are what a pipeline makes of its changes.
type Options struct {
	// Name is that of the pipeline.
	Name string
	// Cluster is part of every id.
	Cluster string
	Filters []Filter
	// KeepManagedFields leaves metadata.managedFields in the objects.
	KeepManagedFields bool
	// Redactor replaces the data of Secrets; nil leaves them as they are.
	Redactor *Redactor
	// Enricher adds the metadata of the objects that Events are about; nil adds nothing.
	Enricher Enricher
	// OnLeave is what becomes of an object that passed the filters before and does not any more.
	OnLeave OnLeave
	// Transforms change what leaves, in order.
	Transforms []Transform
	// Diff is what a MODIFIED carries of the previous version.
	Diff   Diff
	Format Format
	// Body is what FormatCustom makes records with; nil for the other formats. If a table of changes is shown, as FormatJSON, it only decides
	// which of them are sent.
	Body *Body
	// Encoding names the encoding of FormatOTLP.
	Encoding Encoding
	// Profile names the vocabulary that CloudEvents use.
	Profile Profile
	// Large is held while a large object is filtered and transformed, to bound memory. The pipelines of a program share it; nil
	// is no bound.
	Large sync.Locker
}

// Metrics are what a Shaper counts.
type Metrics struct {
	FilterErrors prometheus.Counter
	Hits, Misses prometheus.Counter // of lookups; unused without an Enricher
}

// Shaper decides for one pipeline. It may be used by several goroutines at once.
type Shaper struct {
	options Options
	encoder Encoder
	metrics Metrics
	logger  *slog.Logger
	steps   stepBudget
}

// New makes a Shaper.
func New(options Options, metrics Metrics, logger *slog.Logger) *Shaper {
	if options.Body != nil && options.Body.Program.NeedsOld() {
		options.Diff = DiffOldObject // it waits with the object until the body is made
	}
	return &Shaper{options: options, encoder: NewEncoder(options), metrics: metrics, logger: logger}
}

// Shaped is what a Shaper makes of a delta.
type Shaped struct {
	// Delta is what will be sent; nil if a filter keeps the change back.
	Delta *delta.Delta
	// Err is why Delta can only become a dead letter.
	Err error
	// Passes reports whether the filters let the object pass, whether or not this change of it is sent.
	Passes bool
	// FilteredBy is the index of the first filter that keeps the change back, if one does. Behind the filters counts a body that is null.
	FilteredBy int
}

// Shape applies filters, redaction, enrichment, transforms and the difference. had is set if the pipeline has the object: its filters
// let the previous version pass.
func (s *Shaper) Shape(ctx context.Context, d *delta.Delta, had bool) Shaped {
	defer s.decoding(d)()
	c := s.change(d)
	passes, takes := s.applyFilters(c, had)
	if !takes {
		return Shaped{Passes: passes, FilteredBy: c.filteredBy}
	}
	shaped, err := c.shape(ctx)
	return Shaped{Delta: shaped, Err: err, Passes: passes, FilteredBy: len(s.options.Filters)}
}

// Passes reports whether the filters let a delta's object pass.
func (s *Shaper) Passes(d *delta.Delta) bool {
	defer s.decoding(d)()
	c := s.change(d)
	c.objectOnly = true
	passes, _ := s.applyFilters(c, false)
	return passes
}

func (s *Shaper) change(d *delta.Delta) *Change {
	return &Change{meter: meter{budget: &s.steps, namespace: d.Object.Namespace()}, shaper: s, observed: d}
}

// largeObject is from what size in bytes an object counts as large. Decoded, one can take a hundred times its size, and its
// difference takes as much as the object; each watch may have one. So all pipelines together decode one at a time.
const largeObject = 128 << 10

// IsLarge reports whether a delta has a large object, of which a pipeline should take one at a time.
func IsLarge(d *delta.Delta) bool {
	return len(d.Object.JSON()) > largeObject || d.Old != nil && len(d.Old.JSON()) > largeObject
}

// decoding waits until no other pipeline decodes a large object, if this one is large. The function that it returns ends that.
func (s *Shaper) decoding(d *delta.Delta) (end func()) {
	if s.options.Large == nil || !IsLarge(d) {
		return func() {}
	}
	s.options.Large.Lock()
	return s.options.Large.Unlock
}
