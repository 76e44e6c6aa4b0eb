package config

import (
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// maxPaths bounds the work of comparing each path with each other one. Nobody writes so many.
const maxPaths = 1000

// transforms checks each transform of a pipeline, and then how they fit together.
func (v *validator) transforms(p *Pipeline, at string) {
	at += ".transforms"
	paths := 0
	for i := range p.Transforms {
		t := &p.Transforms[i]
		paths += 1 + len(t.Remove) + len(t.Keep) + len(t.Redact) + len(t.Set) + len(t.Rename)
	}
	if paths > maxPaths {
		v.fault(at, "must not hold more than %d transforms and paths", maxPaths)
		return
	}
	flow := transformFlow{v: v, keepsManagedFields: p.KeepManagedFields}
	for i := range p.Transforms {
		path := index(at, i)
		place, ok := v.decode.places[path]
		if !ok || place.value.failed || v.broken.isBroken(path) && len(place.value.entries) == 0 {
			flow.unreadable()
			continue
		}
		switch keys := len(place.value.entries); {
		case keys == 0:
			v.fault(path, "has no key: give it one of %s", strings.Join(operations(), ", "))
			continue
		case keys > 1:
			v.fault(path, "has %d keys; a transform has one, since their order matters: write one entry for each", keys)
			flow.unreadable()
			continue
		}
		v.transform(p, &p.Transforms[i], path)
		flow.next(&p.Transforms[i], path)
		if v.broken.isBroken(path+".rename") || v.unknownOperation(path) {
			flow.unreadable()
		}
	}
}

// unknownOperation reports whether a transform has none of the known keys.
func (v *validator) unknownOperation(path string) bool {
	return !slices.ContainsFunc(operations(), func(op string) bool { return v.has(path + "." + op) })
}

// operations are the keys of a transform.
func operations() []string { return []string{"remove", "keep", "redact", "set", "rename"} }

// transform checks one alone.
func (v *validator) transform(p *Pipeline, t *Transform, at string) {
	for _, op := range operations() {
		if path := at + "." + op; v.has(path) && v.empty(path) {
			v.fault(path, "must not be empty")
		}
	}
	v.repeated(t.Remove, at+".remove")
	v.repeated(t.Keep, at+".keep")
	v.repeated(t.Redact, at+".redact")
	for i := range t.Set {
		a := &t.Set[i]
		a.Value = v.expression(join(at+".set", a.key), a.text, expr.Value)
		v.readsManagedFields(p, join(at+".set", a.key), a.Value)
		if a.Value != nil && a.Value.Uses().OldObject && p.Diff != DiffNone {
			v.warn(join(at+".set", a.key), "reads oldObject, and with diff the version before is transformed too: for that one oldObject is null, so the difference holds what is set")
		}
		for _, other := range t.Set[:i] {
			if a.Path.Len() > 0 && other.Path.Len() > 0 && a.Path.Meets(other.Path) {
				v.fault(join(at+".set", a.key), "one is inside the other, or the same, as %s: which is set first is not certain; write two transforms", other.key)
			}
		}
	}
	for i, m := range t.Rename {
		for _, other := range t.Rename[:i] {
			if m.From().Meets(other.From()) || m.To().Meets(other.To()) || m.From().Meets(other.To()) || m.To().Meets(other.From()) {
				v.fault(join(at+".rename", m.key), "gets in the way of %s beside it: which is done first is not certain; write two transforms", other.key)
			}
		}
	}
}

// empty reports whether the file has nothing under a key.
func (v *validator) empty(path string) bool {
	n := v.decode.places[path].value
	return n.isNull() || len(n.items)+len(n.entries) == 0 && n.kind != 0 && !v.broken.isBroken(path)
}

// identity is what consumers know an object by.
func identity() []fieldpath.Path {
	return []fieldpath.Path{fieldpath.Of("apiVersion"), fieldpath.Of("kind"), fieldpath.Of("metadata", "name")}
}
