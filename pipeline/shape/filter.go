package shape

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// Filter is one condition of a pipeline. A change passes if it passes all filters. Several goroutines may call a filter
// at once.
type Filter interface {
	// Pass reports whether a change passes. An error means that the filter cannot decide: the change becomes a
	// dead letter. The error must not hold values of the object.
	Pass(c *Change) (bool, error)
	// OfObject reports whether the answer depends on the object alone, not on what happened to it: such filters
	// select the objects of a pipeline, the others the changes of them.
	OfObject() bool
}

// OnLeave says what to send for an object that passed the filters before and does not any more.
type OnLeave string

// The modes of OnLeave.
const (
	OnLeaveIgnore  OnLeave = "ignore"  // nothing
	OnLeaveDeleted OnLeave = "deleted" // it is announced as DELETED, in the version that does not pass
)

// applyFilters evaluates the filters: passes is whether the object passes, takes whether this change of it is sent. A
// change that a filter cannot decide about becomes a dead letter.
func (s *Shaper) applyFilters(c *Change, before bool) (passes, takes bool) {
	if c.observed.Old != nil && !before { // it is known for another pipeline: this one sees an object that is new to it
		observed := *c.observed
		observed.Old = nil
		c.observed = &observed
	}
	if c.observed.FinalStateUnknown {
		return true, s.sends(delta.Deleted, c) // it follows what was sent of the object
	}
	passes, takes = true, true
	reappears := !before && s.options.OnLeave == OnLeaveDeleted && c.observed.Type == delta.Modified
	for i, filter := range s.options.Filters {
		if !passes || !takes && !(filter.OfObject() && s.tracksObjects(c)) {
			continue // its result changes nothing
		}
		if _, limits := filter.(LimitFilter); limits && c.objectOnly {
			continue
		}
		if _, ofTypes := filter.(TypesFilter); reappears && !ofTypes && !filter.OfObject() {
			continue // the receiver has a DELETED of it, and must see that it is back, whatever changed
		}
		c.trace.filter(i)
		passed, err := filter.Pass(c)
		switch {
		case c.unsendable != nil: // it cannot be read, or not be redacted: no filter can decide
			return before, takes
		case err != nil:
			c.undecided = err
			return before, takes
		case passed:
		default:
			if takes {
				c.filteredBy = i
			}
			passes, takes = passes && !filter.OfObject(), false
		}
	}
	// An ADDED has no previous version, but for one of a snapshot that is sent once more.
	if !passes && before && s.options.OnLeave == OnLeaveDeleted && (c.observed.Type != delta.Added || c.observed.Snapshot) {
		c.left = true
		return false, s.sends(delta.Deleted, c)
	}
	return passes, takes
}

// tracksObjects reports whether anything depends on whether the pipeline has an object behind a change: a DELETED, or which version is the
// previous one.
func (s *Shaper) tracksObjects(c *Change) bool {
	return s.sends(delta.Deleted, nil) || c.observed.Type != delta.Deleted && s.sends(delta.Modified, nil) && s.options.needsOld()
}

// sends reports whether the filters for types let a type pass. If one does not, it is the filter that c is filtered by; c may be nil.
func (s *Shaper) sends(t delta.Type, c *Change) bool {
	for i, filter := range s.options.Filters {
		if types, ok := filter.(TypesFilter); ok && !types.has(t) {
			if c != nil {
				c.filteredBy = i
			}
			return false
		}
	}
	return true
}

// TypesFilter passes deltas of the types it lists.
type TypesFilter []delta.Type

// Pass implements [Filter].
func (f TypesFilter) Pass(c *Change) (bool, error) { return f.has(c.observed.Type), nil }

// OfObject implements [Filter].
func (TypesFilter) OfObject() bool { return false }

func (f TypesFilter) has(t delta.Type) bool { return slices.Contains(f, t) }

// NamespacesFilter passes the objects of the selected namespaces, and every cluster-scoped object.
type NamespacesFilter delta.Namespaces

// Pass implements [Filter].
func (f NamespacesFilter) Pass(c *Change) (bool, error) {
	namespace := c.observed.Object.Namespace()
	return namespace == "" || delta.Namespaces(f).Match(namespace), nil
}

// OfObject implements [Filter].
func (NamespacesFilter) OfObject() bool { return true }

// ChangedFilter passes every ADDED and DELETED. It passes a MODIFIED if one of its paths differs from the previous version. A
// change whose previous version is not known passes. The path without a step stands for all but what differs in each change:
// resourceVersion, generation and managedFields.
type ChangedFilter []fieldpath.Path

// Pass implements [Filter]. It reads the JSON of both versions, and decodes neither, but for the path without a step.
func (f ChangedFilter) Pass(c *Change) (bool, error) {
	if c.observed.Type != delta.Modified || c.observed.Old == nil {
		return true, nil
	}
	// As the pipeline may see them: the previous version may have been kept redacted, or without managedFields.
	if c.prepare(); c.unsendable != nil {
		return false, c.unsendable
	}
	if c.prepared.Old == nil {
		return true, nil
	}
	paths, err := f.paths(c)
	if err != nil {
		return false, err
	}
	differ, err := fieldpath.NewSet(paths...).DifferJSON(c.prepared.Old.JSON(), c.prepared.Object.JSON())
	return differ || err != nil, nil // what cannot be compared, as a number beyond float64, may differ
}

// paths returns the paths to compare.
func (f ChangedFilter) paths(c *Change) ([]fieldpath.Path, error) {
	if !slices.ContainsFunc(f, func(p fieldpath.Path) bool { return p.Len() == 0 }) {
		return f, nil
	}
	fields, metadata := map[string]any{}, map[string]any{} // those of both versions
	for _, version := range []func() (map[string]any, error){c.Object, c.OldObject} {
		object, err := version()
		if err != nil {
			return nil, err
		}
		maps.Copy(fields, object)
		of, _ := object["metadata"].(map[string]any)
		maps.Copy(metadata, of)
	}
	paths := slices.DeleteFunc(slices.Clone(f), func(p fieldpath.Path) bool { return p.Len() == 0 })
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		if !slices.Contains([]string{"resourceVersion", "generation", "managedFields"}, name) {
			paths = append(paths, fieldpath.Of("metadata", name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if name != "metadata" {
			paths = append(paths, fieldpath.Of(name))
		}
	}
	return paths, nil
}

// OfObject implements [Filter].
func (ChangedFilter) OfObject() bool { return false }

// NeedsOld reports that the filter reads the previous version.
func (ChangedFilter) NeedsOld() bool { return true }

// OnError is what becomes of a change on which a filter's expression fails, because a field is not there for
// example.
type OnError string

// The modes of OnError.
const (
	OnErrorPass       OnError = "pass"       // it passes, so that a mistake in an expression hides nothing
	OnErrorDrop       OnError = "drop"       // it does not pass
	OnErrorDeadLetter OnError = "deadLetter" // it becomes a dead letter
)

// ExprFilter passes what its expression is true for.
type ExprFilter struct {
	program *expr.Program
	written string
	onError OnError
	// warned are the failures, each at its place in the expression, that were logged as a warning.
	warned *sync.Map
}

// NewExprFilter makes a filter of an expression of the kind [expr.Filter]. written is the expression as people may see it.
func NewExprFilter(program *expr.Program, written string, onError OnError) ExprFilter {
	return ExprFilter{program, written, onError, new(sync.Map)}
}

var _ Filter = ExprFilter{}

// OfObject implements [Filter].
func (f ExprFilter) OfObject() bool { return f.program.ObjectOnly() }

// NeedsOld reports whether the expression looks at the previous version.
func (f ExprFilter) NeedsOld() bool { return f.program.NeedsOld() }

// Pass implements [Filter].
func (f ExprFilter) Pass(c *Change) (bool, error) {
	pass, err := f.program.Pass(context.Background(), c) // its cost bounds it
	if err != nil {
		return f.fails(c, err)
	}
	return pass, nil
}

// fails decides about a change on which the expression fails.
func (f ExprFilter) fails(c *Change, err error) (bool, error) {
	var failed *expr.EvalError
	if !errors.As(err, &failed) {
		return false, err // an object that cannot be read is no matter of onError
	}
	c.shaper.metrics.FilterErrors.Inc()
	f.log(c, failed)
	switch f.decision(failed) {
	case OnErrorDeadLetter:
		return false, err
	case OnErrorDrop:
		return false, nil
	default:
		return true, nil
	}
}

// decision returns what becomes of a change on which the expression fails. One that costs too much becomes a dead letter:
// otherwise an object could be made so large that it passes a filter, or is hidden by it.
func (f ExprFilter) decision(failed *expr.EvalError) OnError {
	if failed.TooExpensive {
		return OnErrorDeadLetter
	}
	return f.onError
}

// log logs a failure: the first at each place of the expression as a warning, since the next change is likely to
// fail as well.
func (f ExprFilter) log(c *Change, failed *expr.EvalError) {
	log := c.shaper.logger.Debug
	if _, warned := f.warned.LoadOrStore(*failed, true); !warned {
		log = c.shaper.logger.Warn
	}
	o := c.observed.Object
	log("filter fails on an object", "resource", delta.ResourceName(c.observed.Resource), "namespace", o.Namespace(), "name", o.Name(),
		"onError", f.decision(failed), "err", failed)
}
