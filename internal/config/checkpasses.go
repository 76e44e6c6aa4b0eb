package config

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// together looks for filters of which each lets something pass, and all of them nothing.
func (v *validator) together(p *Pipeline, at string) {
	v.typesTogether(p, at)
	v.exprsTogether(p, at)
	v.namespacesTogether(p, at)
}

func (v *validator) typesTogether(p *Pipeline, at string) {
	var types []delta.Type
	for i, filter := range p.Filters {
		path := index(at+".filters", i) + ".types"
		switch {
		case len(filter.Types) == 0 || v.broken.isBroken(path):
			continue
		case types == nil:
			types = slices.Clone(filter.Types)
			continue
		}
		left := slices.DeleteFunc(slices.Clone(types), func(t delta.Type) bool { return !slices.Contains(filter.Types, t) })
		if len(left) == 0 {
			v.fault(path, "lets nothing pass: the types before it let only %s pass", joined(types))
			return
		}
		types = left
	}
}

// exprsTogether asks the expressions what they say of each type and resource, without an object.
func (v *validator) exprsTogether(p *Pipeline, at string) {
	type change struct {
		t        delta.Type
		resource schema.GroupVersionResource
	}
	var left []change
	resources, _ := v.resourcesOf(p)
	for _, t := range v.typesOf(p, at) {
		for _, resource := range resources {
			left = append(left, change{t, resource})
		}
	}
	const most = 1000 // evaluations of one expression
	if len(left) > most {
		return
	}
	for i, filter := range p.Filters {
		if filter.Program == nil || !filter.Program.Uses().Type && !filter.Program.Uses().Resource {
			continue
		}
		passes := func(c change) bool {
			return filter.Program.Outcome(expr.Known{Type: string(c.t), Resource: &c.resource}) != expr.Never
		}
		rest := slices.DeleteFunc(slices.Clone(left), func(c change) bool { return !passes(c) })
		switch {
		case len(rest) > 0:
			left = rest
		case len(left) > 0 && len(left) < len(v.typesOf(p, at))*len(resources): // else it was said of this one alone
			v.fault(index(at+".filters", i)+".expr", "is never true for what the expressions before it let pass: nothing would pass")
			return
		}
	}
}

// namespacesTogether compares filters for namespaces with each other and with the sources.
func (v *validator) namespacesTogether(p *Pipeline, at string) {
	scoped := true // every source is of namespaces, so that nothing of the cluster's scope passes by
	var sources []delta.Namespaces
	for _, source := range v.config.Sources {
		if slices.Contains(p.Sources, source.Name) {
			if disjoint(source.Namespaces, source.Namespaces) {
				return // it has a fault of its own
			}
			scoped = scoped && !source.Namespaces.All()
			sources = append(sources, source.Namespaces)
		}
	}
	for i, filter := range p.Filters {
		path := index(at+".filters", i) + ".namespaces"
		if filter.Namespaces == nil || v.broken.isBroken(path) || v.broken.isBroken("sources") || disjoint(*filter.Namespaces, *filter.Namespaces) {
			continue
		}
		apart := func(n delta.Namespaces) bool { return disjoint(n, *filter.Namespaces) }
		if scoped && len(sources) > 0 && !slices.ContainsFunc(sources, func(n delta.Namespaces) bool { return !apart(n) }) {
			v.fault(path, "lets nothing pass: the pipeline's sources watch none of these namespaces")
			continue
		}
		for _, before := range p.Filters[:i] {
			switch {
			case before.Namespaces == nil || !apart(*before.Namespaces):
				continue
			case scoped:
				v.fault(path, "lets nothing pass: a filter before it lets none of these namespaces pass")
			default:
				v.warn(path, "lets only objects without a namespace pass: a filter before it lets none of these namespaces pass")
			}
			break
		}
	}
}

// disjoint reports whether it is certain that no namespace is in both.
func disjoint(a, b delta.Namespaces) bool {
	plain := func(n delta.Namespaces) bool {
		return len(n.Include) > 0 && !slices.ContainsFunc(n.Include, delta.IsGlob)
	}
	if plain(b) {
		a, b = b, a
	}
	both := func(name string) bool { return a.Match(name) && b.Match(name) }
	if plain(a) {
		return !slices.ContainsFunc(a.Include, both)
	}
	if len(a.Include) == 0 || len(b.Include) == 0 {
		return false
	}
	for _, glob := range a.Include {
		if slices.ContainsFunc(b.Include, func(other string) bool { return mayMeet(glob, other) }) {
			return false
		}
	}
	return true
}

// mayMeet reports whether two globs may match the same name, which they do not if they begin with different letters.
func mayMeet(a, b string) bool {
	a, b = literalHead(a), literalHead(b)
	return strings.HasPrefix(a, b) || strings.HasPrefix(b, a)
}

func literalHead(glob string) string {
	if i := strings.IndexAny(glob, `*?[\`); i >= 0 {
		return glob[:i]
	}
	return glob
}

// forNothing warns of what the types that pass leave without effect.
func (v *validator) forNothing(p *Pipeline, at string) {
	types := v.typesOf(p, at)
	if len(types) == 0 {
		return
	}
	if p.OnLeave == OnLeaveDeleted && !slices.Contains(types, delta.Deleted) {
		v.warn(at+".onLeave", "has no effect: an object that leaves is announced as DELETED, and the filters let only %s pass", joined(types))
	}
	if slices.Contains(types, delta.Modified) {
		return
	}
	if p.Diff != DiffNone && v.has(at+".diff") {
		v.warn(at+".diff", "has no effect: only a MODIFIED carries a difference, and the filters let only %s pass", joined(types))
	}
	for i, filter := range p.Filters {
		if len(filter.Changed) > 0 {
			v.warn(index(at+".filters", i)+".changed", "has no effect: it is about MODIFIED, and the filters let only %s pass", joined(types))
		}
	}
}

// immutable reports whether a path is the same in all versions of an object.
func immutable(p fieldpath.Path) bool {
	for _, fixed := range []fieldpath.Path{
		fieldpath.Of("apiVersion"), fieldpath.Of("kind"), fieldpath.Of("metadata", "name"), fieldpath.Of("metadata", "namespace"),
		fieldpath.Of("metadata", "uid"), fieldpath.Of("metadata", "creationTimestamp"), fieldpath.Of("metadata", "generateName"),
	} {
		if fixed.Equal(p) {
			return true
		}
	}
	return false
}

// readsManagedFields reports or warns of an expression that reads what is removed before it is asked.
func (v *validator) readsManagedFields(p *Pipeline, path string, program *expr.Program) {
	if p.KeepManagedFields || program == nil {
		return
	}
	managed := fieldpath.Of("metadata", "managedFields")
	for _, r := range program.FieldUses() {
		if !managed.Covers(fieldpath.Of(r.Path...)) {
			continue
		}
		const message = "reads metadata.managedFields, which is removed before, unless keepManagedFields is true%s"
		if r.Asks || r.Optional {
			v.warn(path, message, v.point(path, r.Offset))
		} else {
			v.fault(path, message, v.point(path, r.Offset))
		}
		return
	}
}
