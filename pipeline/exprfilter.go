package pipeline

import (
	"context"
	"errors"
	"sync"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
)

// OnError is what becomes of a change on which a filter's expression fails, because a field is not there for
// example.
type OnError string

// The modes of OnError.
const (
	OnErrorPass       OnError = "pass"       // it passes, so that a mistake in an expression hides nothing
	OnErrorDrop       OnError = "drop"       // it does not pass
	OnErrorDeadLetter OnError = "deadLetter" // it goes to the dead letter
)

// ExprFilter passes what its expression is true for.
type ExprFilter struct {
	program *expr.Program
	onError OnError
	// warned are the failures, each at its place in the expression, that were logged as a warning.
	warned *sync.Map
}

// NewExprFilter makes a filter of an expression of the kind [expr.Filter].
func NewExprFilter(program *expr.Program, onError OnError) ExprFilter {
	return ExprFilter{program, onError, new(sync.Map)}
}

var _ Filter = ExprFilter{}

// OfObject implements [Filter].
func (f ExprFilter) OfObject() bool { return f.program.ObjectOnly() }

// NeedsOld reports whether the expression looks at the previous version.
func (f ExprFilter) NeedsOld() bool { return f.program.NeedsOld() }

// Pass implements [Filter].
func (f ExprFilter) Pass(c *Change) (bool, error) {
	pass, err := f.program.Pass(context.Background(), c) // its cost bounds it
	var failed *expr.EvalError
	if !errors.As(err, &failed) {
		return pass, err // an object that cannot be read is no matter of onError
	}
	c.pipeline.metrics.filterErrors.Inc()
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

// decision returns what becomes of a change on which the expression fails. One that costs too much goes to the dead letter:
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
	log := c.pipeline.logger.Debug
	if _, warned := f.warned.LoadOrStore(*failed, true); !warned {
		log = c.pipeline.logger.Warn
	}
	o := c.observed.Object
	log("filter fails on an object", "resource", delta.ResourceName(c.observed.Resource), "namespace", o.Namespace(), "name", o.Name(),
		"onError", f.decision(failed), "err", failed)
}
