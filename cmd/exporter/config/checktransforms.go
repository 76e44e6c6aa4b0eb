package config

import (
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// transforms checks that each transform of a pipeline has one operation, that its paths can match, and that they mean the same places as
// in the observed object. What the transforms do to an object is for `explain` to show.
func (v *validator) transforms(p *Pipeline, at string) {
	var moved movedPlaces
	for i := range p.Transforms {
		t, path := &p.Transforms[i], index(at+".transforms", i)
		switch keys := v.keys(path); {
		case v.faults.isBroken(path) && keys == 0:
			continue
		case keys == 0:
			v.fault(path, "has no key: give it one of remove, keep, redact, set, rename")
		case keys > 1:
			v.fault(path, "has %d keys; a transform has one, since their order matters: write one entry for each", keys)
		default:
			v.transform(t, path, &moved)
			moved.add(t, path)
		}
	}
}

// usedPath is a path in a transform, with its place in the file.
type usedPath struct {
	fieldpath.Path
	op, at string
}

// transform checks one transform, given what the ones before it moved.
func (v *validator) transform(t *Transform, at string, moved *movedPlaces) {
	for op, size := range map[string]int{
		"remove": len(t.Remove), "keep": len(t.Keep), "redact": len(t.Redact), "set": len(t.Set), "rename": len(t.Rename),
	} {
		v.notEmpty(at+"."+op, size)
	}
	var found []usedPath // what the transform looks for
	for op, paths := range map[string][]fieldpath.Path{"remove": t.Remove, "keep": t.Keep, "redact": t.Redact} {
		for i, p := range paths {
			found = append(found, usedPath{p, op, index(at+"."+op, i)})
		}
	}
	for _, m := range t.Rename {
		found = append(found, usedPath{m.From(), "rename", join(at+".rename", m.key)})
	}
	for _, used := range found {
		if moved.mayMake(used.Path) || v.knownPath(used.Path, used.at) {
			v.sameItem(used, moved)
		}
	}
	for i := range t.Set {
		a := &t.Set[i]
		path := join(at+".set", a.key)
		a.Value = v.expression(path, a.text, expr.Value)
		v.sameItem(usedPath{a.Path, "set", path}, moved)
	}
}
