package shape

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Retention decides what a watch retains of an object for its next change, on behalf of all of its pipelines: nothing, if
// none of them needs the previous version. What is always applied to objects is applied before, unless one of the
// pipelines sees more.
type Retention struct {
	needed        bool
	managedFields bool
	redactor      *Redactor
	unredacted    bool
}

// Add takes the needs of a pipeline into account, and reports whether it needs the previous version.
func (r *Retention) Add(s *Shaper) bool {
	options := &s.options
	if !options.needsOld() {
		return false
	}
	r.needed = true
	r.managedFields = r.managedFields || options.KeepManagedFields
	if options.Redactor == nil {
		r.unredacted = true
	} else {
		r.redactor = options.Redactor
	}
	return true
}

// needsOld reports whether anything in the pipeline looks at the previous version.
func (o *Options) needsOld() bool {
	if o.Diff.wanted() {
		return true
	}
	return slices.ContainsFunc(o.Filters, needsOld) || slices.ContainsFunc(o.Transforms, needsOld)
}

// needsOld reports whether a filter, a transform or a value declares that it looks at the previous version.
func needsOld[T any](part T) bool {
	p, ok := any(part).(interface{ NeedsOld() bool })
	return ok && p.NeedsOld()
}

// Retain returns what to retain of an object; nil for nothing.
func (r *Retention) Retain(resource schema.GroupVersionResource, object *delta.Object) *delta.Object {
	if !r.needed {
		return nil
	}
	redactor := r.redactor
	if r.unredacted {
		redactor = nil
	}
	object, err := clean(resource, object, r.managedFields, redactor)
	if err != nil {
		return nil // the previous version will be unknown
	}
	return object
}

// Policy identifies how Retain decides, in a word that is kept with the objects; empty if it retains nothing.
func (r *Retention) Policy() string {
	if !r.needed {
		return ""
	}
	policy := "unredacted"
	if !r.unredacted {
		policy = "redacted " + r.redactor.version()
	}
	if r.managedFields {
		policy += "+managedFields"
	}
	return policy
}
