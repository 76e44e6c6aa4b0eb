package pipeline

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file is the way in: what is always on, filters, transforms and the difference are applied before a delta waits.
// So what waits, in memory or in the log, is what will be sent, and nothing unredacted is ever kept.

// OnLeave says what becomes of an object that passed the filters before and does not any more.
type OnLeave string

// The modes of OnLeave.
const (
	OnLeaveIgnore  OnLeave = "ignore"  // nothing
	OnLeaveDeleted OnLeave = "deleted" // it is announced as DELETED, in the version that does not pass
)

// Ticket is room for one delta or gap. It is given back with Take or Cancel, once. The zero value is for none.
type Ticket struct {
	item     *item
	filtered bool
	passes   bool
}

// Passes reports whether the filters let the object pass, whether or not this change of it is sent.
func (t Ticket) Passes() bool { return t.passes }

// Reserve finds out whether a delta concerns the pipeline and makes room for it. before says whether the filters let
// the version before pass, if there is one. It blocks while the backlog is full, and fails only when ctx ends first.
func (p *Pipeline) Reserve(ctx context.Context, d *delta.Delta, before bool) (Ticket, error) {
	passes := true
	var err error
	if !p.leavesAlone(d) {
		c, takes := &Change{pipeline: p, observed: d}, false
		if passes, takes = p.judgeChange(c, before); !takes {
			return Ticket{filtered: true, passes: passes}, nil
		}
		d, err = c.shape(ctx)
	}
	if d.Snapshot {
		p.pace(ctx)
	}
	i := &item{delta: d, ref: d.Ref(), watch: d.Watch, observed: d.Observed, size: d.Size(), err: err}
	return Ticket{item: i, passes: passes}, p.reserve(ctx, i)
}

// leavesAlone reports whether the delta passes as it is, because the pipeline has nothing that could say otherwise.
func (p *Pipeline) leavesAlone(d *delta.Delta) bool {
	o := &p.options
	return len(o.Filters) == 0 && len(o.Transforms) == 0 && o.Enricher == nil && !o.Diff.wanted() &&
		d.Old == nil && !(d.Inferred && d.Type == delta.Deleted) && !IsSecret(d.Resource) &&
		(o.KeepManagedFields || d.Object.WithoutManagedFields() == d.Object)
}

// Passes reports whether the filters let a delta's object pass; nothing is handed over.
func (p *Pipeline) Passes(d *delta.Delta) bool {
	passes, _ := p.judgeChange(&Change{pipeline: p, observed: d}, false)
	return passes
}

// ReserveGap makes room for a gap; the deltas of its watch that follow wait until it is settled.
func (p *Pipeline) ReserveGap(ctx context.Context, g *delta.Gap) (Ticket, error) {
	i := &item{gap: g, ref: g.Ref(), watch: g.Watch, observed: g.Observed, size: gapSize}
	return Ticket{item: i}, p.reserve(ctx, i)
}

// Take hands over what the ticket was made for. It never blocks.
func (p *Pipeline) Take(t Ticket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.filtered {
		p.ledger.received++
		p.ledger.filtered++
		return
	}
	if t.item == nil {
		return
	}
	p.ledger.took(t.item)
	p.place(t.item)
}

// Cancel gives the room back.
func (p *Pipeline) Cancel(t Ticket) {
	if t.item == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.vacate(t.item)
}

// Delta is Reserve and Take in one, for an object that passed before.
func (p *Pipeline) Delta(ctx context.Context, d *delta.Delta) error {
	t, err := p.Reserve(ctx, d, true)
	if err == nil {
		p.Take(t)
	}
	return err
}

// Gap is ReserveGap and Take in one.
func (p *Pipeline) Gap(ctx context.Context, g *delta.Gap) error {
	t, err := p.ReserveGap(ctx, g)
	if err == nil {
		p.Take(t)
	}
	return err
}

// judgeChange asks the filters: passes is what they say of the object, takes whether this change of it is sent. A change
// of which a filter cannot tell goes to the dead letter.
func (p *Pipeline) judgeChange(c *Change, before bool) (passes, takes bool) {
	if c.observed.Inferred && c.observed.Type == delta.Deleted {
		return false, p.sends(delta.Deleted) // its last state is not known: it goes to whoever was told of the object
	}
	passes, takes = true, true
	comes := !before && p.options.OnLeave == OnLeaveDeleted && c.observed.Type == delta.Modified
	for i, filter := range p.options.Filters {
		if !passes || !takes && !(filter.OfObject() && p.sends(delta.Deleted)) {
			continue // its answer changes nothing
		}
		if _, ofTypes := filter.(TypesFilter); comes && !ofTypes && !filter.OfObject() {
			continue // whatever changed: whoever was told that the object left has to learn that it is back
		}
		passed, err := filter.Pass(c)
		c.trace.answered(i, filter, passed, err)
		switch {
		case c.spoiled != nil: // it cannot be read, or not be redacted: no filter can tell
			return before, takes
		case err != nil:
			c.undecided = err
			return before, takes
		case passed:
		case filter.OfObject():
			passes, takes = false, false
		default:
			takes = false
		}
	}
	// An ADDED has no version before, but for one of a snapshot that is sent once more.
	if !passes && before && p.options.OnLeave == OnLeaveDeleted && (c.observed.Type != delta.Added || c.observed.Snapshot) {
		c.left = true
		return false, p.sends(delta.Deleted)
	}
	return passes, takes
}

// sends reports whether the filters for types let a type pass.
func (p *Pipeline) sends(t delta.Type) bool {
	for _, filter := range p.options.Filters {
		if types, ok := filter.(TypesFilter); ok && !types.has(t) {
			return false
		}
	}
	return true
}

// Change is a delta on its way in, as filters and transforms see it: without what must not be seen, and decoded at most
// once, when somebody asks. It has one owner.
type Change struct {
	pipeline *Pipeline
	observed *delta.Delta
	// prepared is observed with what is always on; nil until somebody asks.
	prepared    *delta.Delta
	object, old map[string]any
	// left says that the object passed the filters before and does not now, which is to be told.
	left bool
	// spoiled says why nothing but the object's identity may leave, and undecided why a filter could not tell: the
	// change goes to the dead letter.
	spoiled, undecided error
	// trace takes notes for [Pipeline.Explain]; nil takes none.
	trace *trace
}

// Type of the delta.
func (c *Change) Type() string { return string(c.observed.Type) }

// Snapshot reports whether the delta tells of the state found at first.
func (c *Change) Snapshot() bool { return c.observed.Snapshot }

// Inferred reports whether the delta was worked out from a list.
func (c *Change) Inferred() bool { return c.observed.Inferred }

// Object is the object, decoded. It must not be modified.
func (c *Change) Object() (map[string]any, error) {
	if c.object != nil {
		return c.object, nil
	}
	if c.prepare(); c.spoiled != nil {
		return nil, c.spoiled
	}
	u, err := c.prepared.Object.Unstructured()
	if err != nil {
		c.spoil(err)
		return nil, err
	}
	c.object = u.Object
	return c.object, nil
}

// OldObject is the version before, decoded; nil if there is none or it is not known. It must not be modified.
func (c *Change) OldObject() (map[string]any, error) {
	if c.old != nil {
		return c.old, nil
	}
	if c.prepare(); c.spoiled != nil {
		return nil, c.spoiled
	}
	if c.prepared.Old == nil {
		return nil, nil
	}
	u, err := c.prepared.Old.Unstructured()
	if err != nil {
		c.spoil(err)
		return nil, err
	}
	c.old = u.Object
	return c.old, nil
}

// prepare applies what is always on. What cannot be redacted is replaced by its identity.
func (c *Change) prepare() {
	if c.prepared != nil {
		return
	}
	d := c.observed
	c.prepared = d
	object, err := c.pipeline.clean(d, d.Object)
	if err != nil {
		c.spoil(err)
		return
	}
	old := d.Old
	if old != nil {
		if old, err = c.pipeline.clean(d, old); err != nil {
			old = nil // not known, as far as this pipeline may tell
		}
	}
	if c.pipeline.options.Enricher != nil {
		object, old = c.pipeline.enrich(d, object, old)
	}
	if object != d.Object || old != d.Old {
		prepared := *d
		prepared.Object, prepared.Old = object, old
		c.prepared = &prepared
	}
}

func (p *Pipeline) clean(d *delta.Delta, object *delta.Object) (*delta.Object, error) {
	if !p.options.KeepManagedFields {
		object = object.WithoutManagedFields()
	}
	if p.options.Redactor == nil || !IsSecret(d.Resource) {
		return object, nil
	}
	return p.options.Redactor.Secret(object)
}

// spoil makes a change one for the dead letter, of which no more than the object's identity may leave.
func (c *Change) spoil(err error) {
	bare := *c.observed
	bare.Object, bare.Old, bare.Bare = bare.Object.Identity(), nil, true
	if c.left {
		bare.Type = delta.Deleted
	}
	c.prepared, c.spoiled = &bare, err
}

// shape makes what will wait, and be sent. An error says why it can only go to the dead letter.
func (c *Change) shape(ctx context.Context) (*delta.Delta, error) {
	if c.prepare(); c.spoiled == nil {
		shaped, err := c.transformed(ctx)
		if err == nil {
			return shaped, c.undecided
		}
		c.spoil(err)
	}
	return c.prepared, c.spoiled
}

func (c *Change) transformed(ctx context.Context) (*delta.Delta, error) {
	options := &c.pipeline.options
	differs := options.Diff.wanted() && c.observed.Type == delta.Modified && !c.left
	if len(options.Transforms) == 0 && !differs && c.prepared.Old == nil && !c.left {
		return c.prepared, nil
	}
	shaped := *c.prepared
	shaped.Old = nil
	if c.left {
		shaped.Type = delta.Deleted
	}
	old := c.prepared.Old
	if len(options.Transforms) > 0 {
		var err error
		if shaped.Object, err = c.transform(ctx, c.Object, c.OldObject, shaped.Object); err != nil {
			return nil, err
		}
		if differs && old != nil {
			// A value that is worked out of what the version before has not, of its own version before for example, is not
			// known there: then neither is the difference.
			if old, err = c.transform(ctx, c.OldObject, unknownObject, old); err != nil {
				old = nil
			}
		}
	}
	if differs {
		var err error
		if shaped.Difference, err = options.Diff.between(old, shaped.Object); err != nil {
			return nil, err
		}
	}
	return &shaped, nil
}

// transform applies the transforms to one version, which is decoded for it and belongs to it from then on.
func (c *Change) transform(ctx context.Context, decode, before func() (map[string]any, error), object *delta.Object) (*delta.Object, error) {
	content, err := decode()
	if err != nil {
		return nil, err
	}
	in := versionInput{c, content, before}
	c.trace.begins()
	for i, transform := range c.pipeline.options.Transforms {
		c.trace.applies(transform, content)
		if err := transform.Apply(ctx, content, in); err != nil {
			return nil, fmt.Errorf("transforms[%d]: %w", i, err)
		}
		c.trace.applied(content)
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode what the transforms made: %w", err)
	}
	return object.WithJSON(raw), nil
}

// versionInput is what transforms may ask for while they change one version of a change's object.
type versionInput struct {
	change *Change
	object map[string]any
	before func() (map[string]any, error)
}

var _ TransformInput = versionInput{}

func (v versionInput) Object() (map[string]any, error)    { return v.object, nil }
func (v versionInput) OldObject() (map[string]any, error) { return v.before() }

// Type is the one that is sent.
func (v versionInput) Type() string {
	if v.change.left {
		return string(delta.Deleted)
	}
	return v.change.Type()
}

func (v versionInput) Resource() schema.GroupVersionResource { return v.change.observed.Resource }
func (v versionInput) Snapshot() bool                        { return v.change.Snapshot() }
func (v versionInput) Inferred() bool                        { return v.change.Inferred() }

// unknownObject stands for the version before the version before, which nobody kept.
func unknownObject() (map[string]any, error) { return nil, nil }
