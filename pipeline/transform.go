package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// Transform changes what leaves the cluster of an object.
//
// Apply changes the decoded object in place. The object must belong to the pipeline alone: nothing of it is shared with
// other pipelines, and afterwards it shares nothing with what in gave. If Apply fails, the object may be half changed,
// and may hold what a later transform would have redacted: it must not leave the cluster. The error names paths of the
// configuration, and no value or key of the object. One Transform may be applied by several goroutines at once.
//
// A transform that depends on the version before says so by a method NeedsOld() bool.
type Transform interface {
	Apply(ctx context.Context, object map[string]any, in TransformInput) error
}

// TransformInput is what a value to set may depend on. Its object is the one that is being changed, as the transforms
// before left it.
type TransformInput = expr.Input

// RemoveTransform takes out what its paths match.
type RemoveTransform []fieldpath.Path

// Apply implements [Transform].
func (t RemoveTransform) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	fieldpath.Remove(object, t...)
	return nil
}

// KeepTransform takes out what no path matches.
type KeepTransform struct{ paths *fieldpath.Set }

// NewKeepTransform makes a transform that keeps what the paths match.
func NewKeepTransform(paths ...fieldpath.Path) KeepTransform {
	return KeepTransform{fieldpath.NewSet(paths...)}
}

// Apply implements [Transform].
func (t KeepTransform) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	t.paths.Keep(object)
	return nil
}

// RenameTransform moves what is in one place to another.
type RenameTransform []fieldpath.Move

// Apply implements [Transform]. It fails where something is in the new place already.
func (t RenameTransform) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	for _, move := range t {
		if err := move.Apply(object); err != nil {
			return fmt.Errorf("rename %s to %s: %w", move.From(), move.To(), err)
		}
	}
	return nil
}

// SetTransform puts values into an object. All of them are worked out before the first is set.
type SetTransform []Assignment

// Assignment is a value for a place.
type Assignment struct {
	Path  fieldpath.Path
	Value Evaluator
}

// Evaluator works out the value of an [Assignment]: one that JSON can hold, as map[string]any, []any, string, bool,
// int64, float64 or nil. Its error holds nothing of the object.
type Evaluator interface {
	Eval(ctx context.Context, in TransformInput) (any, error)
}

// NeedsOld reports whether a value depends on the version before.
func (t SetTransform) NeedsOld() bool {
	return slices.ContainsFunc(t, func(a Assignment) bool { return needsOld(a.Value) })
}

// ExprValue is the [Evaluator] of a CEL expression.
type ExprValue struct{ *expr.Program }

// NeedsOld reports whether the expression reads the version before.
func (v ExprValue) NeedsOld() bool { return v.Uses().OldObject }

// Constant is an [Evaluator] that has one value.
type Constant struct{ Value any }

// Eval implements [Evaluator].
func (c Constant) Eval(context.Context, TransformInput) (any, error) { return c.Value, nil }

// Apply implements [Transform].
func (t SetTransform) Apply(ctx context.Context, object map[string]any, in TransformInput) error {
	values := make([]any, len(t))
	for i, assignment := range t {
		value, err := assignment.Value.Eval(ctx, in)
		if err == nil {
			err = checkValue(value, maxValueDepth)
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", assignment.Path, err)
		}
		// A value may be a part of the object, which the first assignment changes.
		values[i] = fieldpath.Clone(value)
	}
	for i, assignment := range t {
		if err := assignment.Path.Set(object, values[i]); err != nil {
			return fmt.Errorf("set %s: %w", assignment.Path, err)
		}
	}
	return nil
}

// maxValueDepth of a value; no object is nested as deeply. It also ends a value that contains itself.
const maxValueDepth = 100

// checkValue fails for what is no decoded JSON, and so could neither be copied nor encoded.
func checkValue(value any, depth int) error {
	if depth == 0 {
		return errors.New("the value is nested too deeply")
	}
	switch value := value.(type) {
	case nil, bool, string, int64, float64:
		return nil
	case map[string]any:
		for _, member := range value {
			if err := checkValue(member, depth-1); err != nil {
				return err
			}
		}
		return nil
	case []any:
		for _, item := range value {
			if err := checkValue(item, depth-1); err != nil {
				return err
			}
		}
		return nil
	default:
		return errors.New("the value is nothing that JSON can hold")
	}
}
