package pipeline

import (
	"fmt"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// trace takes notes of what becomes of one change on its way in. Its methods do nothing if it is nil, which it is
// everywhere but in [Pipeline.Explain].
type trace struct {
	answers map[int]FilterAnswer // by the place of the filter; those that were asked
	failed  *expr.EvalError      // of the filter that is being asked
	runs    int                  // versions that were transformed: the object, and then the one before
	steps   []TransformStep
	hidden  hiddenValues
	// transforms are the pipeline's: what one will redact is hidden before.
	transforms []Transform
}

// fails notes why a filter's expression has no result.
func (t *trace) fails(err *expr.EvalError) {
	if t != nil {
		t.failed = err
	}
}

// answered notes what a filter said. On which values is found out afterwards.
func (t *trace) answered(place int, filter Filter, passed bool, err error) {
	if t == nil {
		return
	}
	answer := FilterAnswer{Passed: passed, OfObject: filter.OfObject(), Err: err}
	if t.failed != nil {
		answer.Err, t.failed = t.failed, nil
	}
	t.answers[place] = answer
}

// begins notes that the transforms begin on a version.
func (t *trace) begins() {
	if t != nil {
		t.runs++
	}
}

// applies notes what a transform is about to change.
func (t *trace) applies(transform Transform, content map[string]any) {
	if t == nil {
		return
	}
	t.hidden.add(transform, content)
	if t.runs == 1 {
		step := TransformStep{Kind: transformKind(transform), Before: copyOf(content), Failed: true}
		hide(t.transforms[len(t.steps):], step.Before)
		t.steps = append(t.steps, step)
	}
}

// applied notes what became of it.
func (t *trace) applied(content map[string]any) {
	if t != nil && t.runs == 1 {
		last := &t.steps[len(t.steps)-1]
		last.After, last.Failed = copyOf(content), false
		hide(t.transforms[len(t.steps):], last.After)
	}
}

func copyOf(content map[string]any) map[string]any {
	return fieldpath.Clone(content).(map[string]any)
}

func transformKind(transform Transform) string {
	switch transform.(type) {
	case RemoveTransform:
		return "remove"
	case KeepTransform:
		return "keep"
	case RedactTransform:
		return "redact"
	case SetTransform:
		return "set"
	case RenameTransform:
		return "rename"
	default:
		return fmt.Sprintf("%T", transform)
	}
}
