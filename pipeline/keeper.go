package pipeline

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Keeper decides what is kept of an object for its next change, on behalf of all pipelines of a watch: nothing, if none
// of them needs the version before; and what is always on is applied before, unless one of them wants to see more.
type Keeper struct {
	needed        bool
	managedFields bool
	redactor      *Redactor
	unredacted    bool
}

// Serve takes a pipeline into account.
func (k *Keeper) Serve(p *Pipeline) {
	options := &p.options
	if !options.needsOld() {
		return
	}
	k.needed = true
	k.managedFields = k.managedFields || options.KeepManagedFields
	if options.Redactor == nil {
		k.unredacted = true
	} else {
		k.redactor = options.Redactor
	}
}

// needsOld reports whether anything in the pipeline looks at the version before.
func (o *Options) needsOld() bool {
	if o.Diff.wanted() {
		return true
	}
	return slices.ContainsFunc(o.Filters, needsOld) || slices.ContainsFunc(o.Transforms, needsOld)
}

// needsOld reports whether a filter, a transform or a value says that it looks at the version before.
func needsOld[T any](part T) bool {
	p, ok := any(part).(interface{ NeedsOld() bool })
	return ok && p.NeedsOld()
}

// Keep returns what to keep of an object; nil for nothing.
func (k *Keeper) Keep(resource schema.GroupVersionResource, object *delta.Object) *delta.Object {
	if !k.needed || object == nil {
		return nil
	}
	if !k.managedFields {
		object = object.WithoutManagedFields()
	}
	if k.unredacted || !IsSecret(resource) {
		return object
	}
	redacted, err := k.redactor.Secret(object)
	if err != nil {
		return nil // the version before will not be known
	}
	return redacted
}

// String says how Keep decides, in a word that is kept with the objects; empty if it keeps nothing.
func (k *Keeper) String() string {
	if !k.needed {
		return ""
	}
	how := "redacted"
	if k.unredacted {
		how = "unredacted"
	}
	if k.managedFields {
		how += "+managedFields"
	}
	return how
}
