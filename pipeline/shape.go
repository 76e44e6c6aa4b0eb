package pipeline

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
)

// shape makes what will wait, and be sent. The error is why it can only go to the dead letter.
func (c *Change) shape(ctx context.Context) (*delta.Delta, error) {
	if c.prepare(); c.unsendable == nil {
		shaped, err := c.transformed(ctx)
		if err == nil {
			return shaped, c.undecided
		}
		c.markUnsendable(err)
	}
	return c.prepared, c.unsendable
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
	in := versionInput{c, c, content, old}
	recorded.version(content)
	for i, transform := range c.pipeline.options.Transforms {
		if err := transform.Apply(ctx, content, in); err != nil {
			return nil, fmt.Errorf("transforms[%d]: %w", i, err)
		}
		recorded.version(content)
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return nil, fmt.Errorf("encode what the transforms made: %w", err)
	}
	return object.WithJSON(raw), nil
}

// versionInput is the input of transforms while they change one version of a change's object.
type versionInput struct {
	TransformInput // the change, but not as an [expr.Identified]: a transform may have changed the identity
	change         *Change
	object         map[string]any
	old            bool
}

var _ expr.Metered = versionInput{}

// Brief implements [expr.Metered].
func (v versionInput) Brief() bool { return v.change.Brief() }

// Spent implements [expr.Metered].
func (v versionInput) Spent(steps uint64) { v.change.Spent(steps) }

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
