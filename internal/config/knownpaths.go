package config

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// This file knows what every object has: its top level by convention only, since the kinds of a cluster are not known
// here, and its metadata exactly (ObjectMeta in apimachinery's meta/v1).

// metadataFields are the members of metadata, with the form of each.
func metadataFields() map[string]fieldForm {
	return map[string]fieldForm{
		"name": scalarField, "generateName": scalarField, "namespace": scalarField, "selfLink": scalarField, "uid": scalarField,
		"resourceVersion": scalarField, "generation": scalarField, "creationTimestamp": scalarField,
		"deletionTimestamp": scalarField, "deletionGracePeriodSeconds": scalarField,
		"labels": textsField, "annotations": textsField,
		"finalizers": listField, "ownerReferences": listField, "managedFields": listField,
	}
}

// fieldForm is what a field of metadata holds.
type fieldForm int

const (
	scalarField fieldForm = iota
	textsField            // a map of texts
	listField
)

// commonFields are what objects have at the top, in Kubernetes itself and in most custom resources.
func commonFields() []string {
	return []string{
		"apiVersion", "kind", "metadata", "spec", "status", "data", "binaryData", "stringData", "immutable", "type", "rules",
		"subjects", "roleRef", "webhooks", "involvedObject", "regarding", "reason", "message", "note", "source", "count", "series",
		"firstTimestamp", "lastTimestamp", "eventTime", "reportingComponent", "reportingController", "related", "action",
		"secrets", "imagePullSecrets", "endpoints", "ports", "subsets", "provisioner", "parameters", "reclaimPolicy", "value", "template",
	}
}

// misspelled returns what a field at the top was probably meant to be, or "". The fields of custom resources are free
// and may look like any, so only the ones that nearly everybody writes are thought of.
func misspelled(name string) string {
	if slices.Contains(commonFields(), name) {
		return ""
	}
	return suggest(name, []string{"apiVersion", "kind", "metadata", "spec", "status", "data", "binaryData", "stringData", "involvedObject"})
}

// knownPath checks a path that is looked for at config path at: whether an object can have it at all. text is the path
// as the file has it. A path of the top level that no object of Kubernetes has is worth a warning if it looks like a
// slip: the free fields of a custom resource are not known.
func (v *validator) knownPath(p fieldpath.Path, at string, point func(offset int) string) (ok bool) {
	first, ok := p.At(0).Name, true
	fault := func(step int, format string, args ...any) {
		ok = false
		v.fault(at, format+"%s", append(args, point(p.Offset(step)))...)
	}
	switch {
	case (first == "apiVersion" || first == "kind") && p.Len() > 1:
		fault(1, "never matches: %s is text, and has nothing inside", first)
	case (first == "object" || first == "oldObject") && p.Len() > 1 && slices.Contains(commonFields(), p.At(1).Name):
		v.warn(at, "looks for a field named %s: a path begins inside the object; did you mean %s?%s", first, p.Tail(1), point(0))
	case first != "metadata":
		if meant := misspelled(first); meant != "" {
			v.warn(at, "looks for a field named %s; did you mean %s?%s", first, fieldpath.Of(meant).Join(p.Tail(1)), point(0))
		}
	case p.Len() > 1:
		v.knownMetadata(p, fault)
	}
	return ok
}

func (v *validator) knownMetadata(p fieldpath.Path, fault func(step int, format string, args ...any)) {
	field := p.At(1)
	form, known := metadataFields()[field.Name]
	switch {
	case field.Kind == fieldpath.Every:
		return
	case field.Kind == fieldpath.Index:
		fault(1, "never matches: metadata is a map, and has no items")
		return
	case !known:
		names := make([]string, 0, len(metadataFields()))
		for name := range metadataFields() {
			names = append(names, name)
		}
		slices.Sort(names)
		hint := "; to say a label or an annotation, write metadata.labels or metadata.annotations before it"
		if meant := suggest(field.Name, names); meant != "" {
			hint = "; did you mean " + fieldpath.Of("metadata", meant).Join(p.Tail(2)).String() + "?"
		}
		fault(1, "never matches: metadata has no field %s%s", field.Name, hint)
		return
	case p.Len() == 2:
		return
	}
	below := p.At(2)
	switch {
	case form == scalarField:
		fault(2, "never matches: %s has nothing inside", p.Head(2))
	case form == textsField && below.Kind == fieldpath.Index:
		fault(2, "never matches: %s is a map, and has no items", p.Head(2))
	case form == textsField && p.Len() > 3:
		fault(3, "never matches: %s are texts, and have nothing inside%s", p.Head(2), dotted(p))
	case form == listField && below.Kind == fieldpath.Name:
		fault(2, "never matches: %s is a list; write %s for every item", p.Head(2), p.Head(2).String()+"[*]"+"."+p.Tail(2).String())
	case form == listField && field.Name == "finalizers" && p.Len() > 3:
		fault(3, "never matches: finalizers are texts, and have nothing inside")
	}
}

// dotted suggests the quotes that the name of a label with dots in it needs.
func dotted(p fieldpath.Path) string {
	name := ""
	for i := 2; i < p.Len(); i++ {
		if p.At(i).Kind != fieldpath.Name {
			return ""
		}
		if i > 2 {
			name += "."
		}
		name += p.At(i).Name
	}
	return "; did you mean " + p.Head(2).Join(fieldpath.Of(name)).String() + "?"
}
