package config

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// transforms checks that each transform of a pipeline has one operation, that its paths can match, and that an index in them means the same
// item as in the observed object. What the transforms do to an object is for `explain` to show.
func (v *validator) transforms(p *Pipeline, at string) {
	var before earlier
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
			v.transform(t, path, &before)
			before.add(t, path)
		}
	}
}

// earlier is what the transforms before one did.
type earlier struct {
	made      []string // fields, as metadata.labels or metadata, in which something got a value
	shortened string   // the first transform that took items out of a list; empty if none did
}

// transform checks one transform.
func (v *validator) transform(t *Transform, at string, before *earlier) {
	for op, paths := range map[string][]fieldpath.Path{"remove": t.Remove, "keep": t.Keep, "redact": t.Redact} {
		for i, p := range paths {
			v.lookedFor(p, index(at+"."+op, i), before)
		}
	}
	for _, m := range t.Rename {
		v.lookedFor(m.From(), join(at+".rename", m.key), before)
	}
	for i := range t.Set {
		a := &t.Set[i]
		path := join(at+".set", a.key)
		a.Value = v.expression(path, a.text, expr.Value)
		v.sameItem(a.Path, path, before)
	}
}

// lookedFor checks a path that a transform looks for.
func (v *validator) lookedFor(p fieldpath.Path, at string, before *earlier) {
	made := slices.Contains(before.made, fieldOf(p)) || p.Len() > 0 && slices.Contains(before.made, p.Head(1).String())
	if made || v.knownPath(p, at) {
		v.sameItem(p, at, before)
	}
}

// sameItem checks that a path has no index behind a transform that took items out of a list: of which list does not matter, because it may have
// been renamed. A redact that misses its value would send it.
func (v *validator) sameItem(p fieldpath.Path, at string, before *earlier) {
	if before.shortened != "" && p.Has(fieldpath.Index) {
		v.fault(at, "an index may mean another item here: %s takes items out of a list, and those behind them move up; put this before it, or write [*] for every item",
			before.shortened)
	}
}

func fieldOf(p fieldpath.Path) string { return p.Head(min(2, p.Len())).String() }

// add notes what a transform does.
func (b *earlier) add(t *Transform, at string) {
	shortens := slices.ContainsFunc(t.Remove, func(p fieldpath.Path) bool { return p.Len() > 0 && p.At(p.Len()-1).Kind == fieldpath.Index }) ||
		slices.ContainsFunc(t.Keep, func(p fieldpath.Path) bool {
			return p.Has(fieldpath.Index) || p.Head(max(0, p.Len()-1)).Has(fieldpath.Every) // it drops what has no match in it
		})
	if shortens && b.shortened == "" {
		b.shortened = at
	}
	for _, m := range t.Rename {
		b.made = append(b.made, fieldOf(m.To()))
	}
	for _, a := range t.Set {
		b.made = append(b.made, fieldOf(a.Path))
	}
}
