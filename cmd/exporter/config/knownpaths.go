package config

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// knownPath checks that an object may have a value at p. The fields outside of metadata depend on the kind, and are not
// checked.
func (v *validator) knownPath(p fieldpath.Path, at string) bool {
	if p.Len() < 2 || p.At(1).Kind != fieldpath.Name {
		return true
	}
	switch first, field := p.At(0).Name, p.At(1).Name; {
	case first == "object" || first == "oldObject":
		v.warn(at, "looks for a field named %s: a path begins inside the object; did you mean %s?", first, p.Tail(1))
	case first != "metadata":
	case !slices.Contains(expr.MetadataFields(), field):
		hint := "; to say a label or an annotation, write metadata.labels or metadata.annotations before it"
		if meant := expr.Nearest(field, expr.MetadataFields()); meant != "" {
			hint = "; did you mean " + fieldpath.Of("metadata", meant).Join(p.Tail(2)).String() + "?"
		}
		v.fault(at, "never matches: metadata has no field %s%s", field, hint)
		return false
	case (field == "labels" || field == "annotations") && p.Len() > 3:
		v.fault(at, "never matches: %s are texts, and have nothing inside; a name with dots stands in quotes: %s[\"a.b/c\"]", p.Head(2), p.Head(2))
		return false
	}
	return true
}
