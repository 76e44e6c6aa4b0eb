package shape

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
)

// Change is a delta as filters and transforms see it: redacted, and decoded at most once, when something reads its values.
// One goroutine uses it.
type Change struct {
	meter
	shaper   *Shaper
	observed *delta.Delta
	// prepared is observed without managedFields, redacted and enriched; nil until it is needed.
	prepared    *delta.Delta
	object, old map[string]any
	// objectOnly is set where only the object is checked: that must use up no limit.
	objectOnly bool
	// left is set if the object passed the filters before and does not now, and is sent as DELETED.
	left bool
	// filteredBy is the index of the first filter that keeps the change back, if one does.
	filteredBy int
	// unsendable is why only the object's identity may leave, undecided why a filter has no result: either way the change
	// becomes a dead letter.
	unsendable, undecided error
	// trace records for [Shaper.Explain]; nil records nothing.
	trace *trace
}

// Type returns the type of the delta.
func (c *Change) Type() string { return string(c.observed.Type) }

// Snapshot reports whether the delta is of the state that was found at first.
func (c *Change) Snapshot() bool { return c.observed.Snapshot }

// Inferred reports whether the change was missed and the delta was found by comparing states.
func (c *Change) Inferred() bool { return c.observed.Inferred }

// ChangedBy implements [expr.Input].
func (c *Change) ChangedBy() []map[string]string { return changedBy(c.observed) }

func changedBy(d *delta.Delta) []map[string]string {
	var managers []map[string]string
	for _, m := range delta.Managers(d.ChangedBy()) {
		at := ""
		if !m.Time.IsZero() {
			at = m.Time.UTC().Format(time.RFC3339)
		}
		managers = append(managers, map[string]string{"manager": m.Manager, "operation": m.Operation, "subresource": m.Subresource, "time": at})
	}
	return managers
}

// Object returns the object, decoded. It must not be modified.
func (c *Change) Object() (map[string]any, error) { return c.decode(&c.object, false) }

// OldObject returns the previous version, decoded; nil if there is none or it is not known. It must not be modified.
func (c *Change) OldObject() (map[string]any, error) { return c.decode(&c.old, true) }

func (c *Change) decode(decoded *map[string]any, old bool) (map[string]any, error) {
	if *decoded != nil {
		return *decoded, nil
	}
	if c.prepare(); c.unsendable != nil {
		return nil, c.unsendable
	}
	object := c.prepared.Object
	if old {
		object = c.prepared.Old
	}
	if object == nil {
		return nil, nil
	}
	u, err := object.Unstructured()
	if err != nil {
		c.markUnsendable(err)
		return nil, err
	}
	*decoded = u.Object
	return *decoded, nil
}

// prepare removes managedFields, redacts and enriches. An object that cannot be redacted is replaced by its identity.
func (c *Change) prepare() {
	if c.prepared != nil {
		return
	}
	d := c.observed
	c.prepared = d
	options := &c.shaper.options
	object, err := clean(d.Resource, d.Object, options.KeepManagedFields, options.Redactor)
	if err != nil {
		c.markUnsendable(err)
		return
	}
	old := d.Old
	if old != nil {
		if old, err = clean(d.Resource, old, options.KeepManagedFields, options.Redactor); err != nil {
			old = nil // this pipeline must not show it
		}
	}
	if options.Enricher != nil {
		object, old = c.shaper.enrich(d, object, old)
	}
	if object != d.Object || old != d.Old {
		prepared := *d
		prepared.Object, prepared.Old = object, old
		c.prepared = &prepared
	}
}

// clean returns an object without what must not be seen of it: managedFields, unless they are kept, and the data of a Secret,
// unless the redactor is nil.
func clean(resource schema.GroupVersionResource, object *delta.Object, keepManagedFields bool, redactor *Redactor) (*delta.Object, error) {
	if !keepManagedFields {
		object = object.WithoutManagedFields()
	}
	switch secret := IsSecret(resource); {
	case secret && redactor != nil:
		return object.Redacted(redactor, redactor.Secret)
	case secret || keepManagedFields:
		return object.Uncached(), nil // what other pipelines make of it would not count towards the bound of this one
	}
	return object, nil
}

// markUnsendable makes a dead letter of a change, of which no more than the object's identity may leave.
func (c *Change) markUnsendable(err error) {
	bare := *c.observed
	bare.Object, bare.Old, bare.Bare = bare.Object.Identity(), nil, true
	if c.left {
		bare.Type = delta.Deleted
	}
	c.prepared, c.unsendable = &bare, err
}

// shape makes what will wait, and be sent; nil if the body is null. The error is why it can only become a dead letter.
func (c *Change) shape(ctx context.Context) (*delta.Delta, error) {
	if c.prepare(); c.unsendable == nil {
		shaped, err := c.transformed(ctx)
		if err == nil && c.shaper.options.Body != nil && c.undecided == nil {
			made, failed := c.withBody(ctx, shaped)
			if err = failed; made == nil || c.shaper.options.Format == FormatCustom {
				shaped = made
			}
		}
		if err == nil {
			return shaped, c.undecided
		}
		c.markUnsendable(err)
	}
	return c.prepared, c.unsendable
}

func (c *Change) transformed(ctx context.Context) (*delta.Delta, error) {
	options := &c.shaper.options
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
		if shaped.Object, err = c.transform(ctx, false); err != nil {
			return nil, err
		}
		if differs && old != nil {
			// A transform may fail on the previous version, which lacks a field or whose own previous version is not kept: then the
			// difference is unknown.
			if old, err = c.transform(ctx, true); err != nil {
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

// transform applies the transforms to the object or, if old is set, to the previous version. It is decoded for them, and
// belongs to them from then on.
func (c *Change) transform(ctx context.Context, old bool) (*delta.Object, error) {
	object, decode, recorded := c.prepared.Object, c.Object, c.trace
	if old {
		object, decode, recorded = c.prepared.Old, c.OldObject, nil
	}
	content, err := decode()
	if err != nil {
		return nil, err
	}
	in := versionInput{c, &c.meter, c, content, old}
	recorded.version(content)
	for i, transform := range c.shaper.options.Transforms {
		if err := transform.Apply(ctx, content, in); err != nil {
			return nil, fmt.Errorf("transforms[%d]: %w", i, err)
		}
		recorded.version(content)
	}
	raw, err := json.Marshal(content)
	if old {
		c.old = nil
	} else {
		c.object = nil // decoded, the two versions of a large object take too much at once
	}
	if err != nil {
		return nil, fmt.Errorf("encode the transformed object: %w", err)
	}
	return object.WithJSON(raw), nil
}

// versionInput is the input of transforms while they change one version of a change's object.
type versionInput struct {
	TransformInput // the change, but not as an [expr.Identified]: a transform may have changed the identity
	*meter
	change *Change
	object map[string]any
	old    bool
}

func (v versionInput) Object() (map[string]any, error) { return v.object, nil }

// OldObject returns nil: what came before the previous version is not kept.
func (v versionInput) OldObject() (map[string]any, error) {
	if v.old {
		return nil, nil
	}
	return v.change.OldObject()
}

// Type is the one that is sent.
func (v versionInput) Type() string {
	if v.change.left {
		return string(delta.Deleted)
	}
	return v.change.Type()
}

var (
	_ expr.Identified = (*Change)(nil)
	_ expr.Metered    = (*Change)(nil)
	_ expr.Metered    = versionInput{}
)

// Resource is the resource of the object.
func (c *Change) Resource() schema.GroupVersionResource { return c.observed.Resource }

// Ref names the object.
func (c *Change) Ref() delta.Ref { return c.observed.Ref() }

// Identity is what is known of the object without decoding it.
func (c *Change) Identity() expr.Identity {
	o := c.observed.Object
	return expr.Identity{
		APIVersion: o.APIVersion(), Kind: o.Kind(), Namespace: o.Namespace(), Name: o.Name(),
		UID: string(o.UID()), ResourceVersion: o.ResourceVersion(),
	}
}
