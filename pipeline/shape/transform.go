package shape

import (
	"context"
	"fmt"
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
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
// A transform that depends on the previous version has a method NeedsOld() bool.
type Transform interface {
	Apply(ctx context.Context, object map[string]any, in TransformInput) error
}

// TransformInput is what a transform may depend on. Its object is the one that is being changed, as the transforms before
// left it.
type TransformInput interface {
	expr.Input
	// Ref names the object, whatever transforms made of its metadata.
	Ref() delta.Ref
}

// RemoveTransform takes out what its paths match.
type RemoveTransform []fieldpath.Path

// Apply implements [Transform].
func (t RemoveTransform) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	fieldpath.Remove(object, t...)
	return nil
}

// KeepTransform removes what no path matches.
type KeepTransform []fieldpath.Path

// Apply implements [Transform].
func (t KeepTransform) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	fieldpath.NewSet(t...).Keep(object) // next to decoding the object, this costs nothing
	return nil
}

// RedactTransform puts digests in the place of what its paths match. A list or a map becomes one digest. The last-applied
// annotation becomes one too, whatever the paths are: it is a copy of the object that kubectl made. In it the values may
// stand in other places. Another transform may have moved them, or a list may have got further items since.
type RedactTransform struct {
	Redactor *Redactor
	Paths    []fieldpath.Path
}

// Apply implements [Transform].
func (t RedactTransform) Apply(_ context.Context, object map[string]any, in TransformInput) error {
	for _, path := range t.all() {
		if err := path.Replace(object, func(at fieldpath.Path, value any) (any, error) {
			return t.Redactor.value(in.Ref(), at, value)
		}); err != nil {
			return fmt.Errorf("redact %s: %w", path, err)
		}
	}
	return nil
}

// all returns the paths, and that of the last-applied annotation.
func (t RedactTransform) all() []fieldpath.Path {
	return append(t.Paths[:len(t.Paths):len(t.Paths)], fieldpath.Of("metadata", "annotations", delta.LastApplied))
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

// SetTransform puts values into an object. All of them are evaluated before the first is set.
type SetTransform []Assignment

// Assignment is a value for a place.
type Assignment struct {
	Path  fieldpath.Path
	Value *expr.Program // of the kind [expr.Value]
}

// NeedsOld reports whether a value depends on the previous version.
func (t SetTransform) NeedsOld() bool {
	return slices.ContainsFunc(t, func(a Assignment) bool { return a.Value.NeedsOld() })
}

// Apply implements [Transform].
func (t SetTransform) Apply(ctx context.Context, object map[string]any, in TransformInput) error {
	values := make([]any, len(t))
	for i, assignment := range t {
		var err error
		if values[i], err = assignment.Value.Eval(ctx, in); err != nil {
			return fmt.Errorf("set %s: %w", assignment.Path, err)
		}
	}
	for i, assignment := range t {
		if err := assignment.Path.Set(object, values[i]); err != nil {
			return fmt.Errorf("set %s: %w", assignment.Path, err)
		}
	}
	return nil
}
