package config

import (
	"strings"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// transformFlow goes through the transforms of a pipeline in order and looks for what contradicts: a transform that
// needs what another took away, or that makes what another throws away.
type transformFlow struct {
	v                  *validator
	keepsManagedFields bool
	done               []effect
	moved              []movedItems
}

// effect is what a transform did at one path, or a keep at all of its.
type effect struct {
	kind  effectKind
	paths []fieldpath.Path
	at    string // in the configuration
	// readsObject is set if the value of a made path was worked out from the object, and certain if the path is made in
	// every object.
	readsObject, certain bool
	useless              bool // said already
	shape                expr.Shape
}

type effectKind int

const (
	removes  effectKind = iota // the paths are gone
	movesOff                   // the paths are gone, and stand elsewhere
	keeps                      // all but the paths is gone
	redacts                    // the paths have nothing inside any more
	makes                      // the paths exist
)

// next looks at the transform that follows.
func (f *transformFlow) next(t *Transform, at string) {
	each := func(paths []fieldpath.Path, op string, visit func(fieldpath.Path, string)) {
		for i, p := range paths {
			if p.Len() > 0 {
				visit(p, index(at+"."+op, i))
			}
		}
	}
	var fresh []effect
	each(t.Remove, "remove", func(p fieldpath.Path, path string) {
		if !f.needs(p, path, "remove", f.v.pointer(path)) {
			return
		}
		f.wasted(path, "removed", func(made fieldpath.Path) bool { return p.Covers(made) })
		f.identityLost(path, "removes", func(known fieldpath.Path) bool { return p.Covers(known) })
		fresh = append(fresh, effect{kind: removes, paths: []fieldpath.Path{p}, at: path})
	})
	var kept []fieldpath.Path
	each(t.Keep, "keep", func(p fieldpath.Path, path string) {
		if f.needs(p, path, "keep", f.v.pointer(path)) {
			kept = append(kept, p)
		}
	})
	if len(kept) > 0 && len(kept) == len(t.Keep) { // else who knows what was meant to stay
		path := at + ".keep"
		drops := func(p fieldpath.Path) bool { return !meetsAny(kept, p) }
		f.wasted(path, "dropped", drops)
		f.identityLost(path, "drops", drops)
		fresh = append(fresh, effect{kind: keeps, paths: kept, at: path})
	}
	if len(t.Redact) > 0 {
		f.copyMoved(at + ".redact")
	}
	each(t.Redact, "redact", func(p fieldpath.Path, path string) {
		if !f.needs(p, path, "redact", f.v.pointer(path)) {
			return
		}
		f.knownElsewhere(p, path)
		fresh = append(fresh, effect{kind: redacts, paths: []fieldpath.Path{p}, at: path})
	})
	for _, a := range t.Set {
		path := join(at+".set", a.key)
		if a.Path.Len() == 0 || a.Value == nil {
			fresh = append(fresh, mayMake(a.Path))
			continue
		}
		if !f.sameItem(a.Path, path, "set", pointIn(a.key)) || !f.canHold(a.Path, path, pointIn(a.key)) || !f.canRead(a.Value, path) {
			fresh = append(fresh, mayMake(a.Path))
			continue
		}
		reads := a.Value.Uses().Object
		if !reads {
			f.wasted(path, "set again", a.Path.Covers)
		}
		f.misspelt(a.Path, path, pointIn(a.key))
		fresh = append(fresh, effect{kind: makes, paths: []fieldpath.Path{a.Path}, at: path, readsObject: reads, certain: a.Path.IsNames(), shape: a.Value.Shape()})
	}
	for _, m := range t.Rename {
		path := join(at+".rename", m.key)
		if !f.needs(m.From(), path, "rename", pointIn(m.key)) || !f.free(m.To(), path) || !f.canHold(m.To(), path, f.v.pointer(path)) {
			fresh = append(fresh, mayMake(m.To()))
			continue
		}
		f.misspelt(m.To(), path, f.v.pointer(path))
		f.identityLost(path, "renames", func(known fieldpath.Path) bool { return m.From().Covers(known) })
		fresh = append(fresh,
			effect{kind: movesOff, paths: []fieldpath.Path{m.From()}, at: path},
			effect{kind: makes, paths: []fieldpath.Path{m.To()}, at: path})
	}
	f.done = append(f.done, fresh...)
	f.moveItems(fresh)
}

// mayMake is the effect of what has a fault: who uses the path, which may be none for any, is not to be blamed.
func mayMake(p fieldpath.Path) effect {
	return effect{kind: makes, paths: []fieldpath.Path{p}, useless: true}
}

// unreadable notes a transform that says nobody knows what.
func (f *transformFlow) unreadable() { f.done = append(f.done, mayMake(fieldpath.Path{})) }

// pointIn is for the key of an entry, in which nothing expands.
func pointIn(key string) func(int) string {
	return func(offset int) string { return pointAt(key, offset) }
}

func meetsAny(paths []fieldpath.Path, p fieldpath.Path) bool {
	for _, other := range paths {
		if other.Meets(p) {
			return true
		}
	}
	return false
}

// needs checks that what a transform looks for can be there. If it cannot, it is as if the transform were not there:
// nothing follows from it.
func (f *transformFlow) needs(p fieldpath.Path, at, op string, point func(int) string) bool {
	if !f.sameItem(p, at, op, point) {
		return false
	}
	missing := func(format string, args ...any) bool {
		f.v.fault(at, "there is nothing to "+op+": "+format, args...)
		return false
	}
	for i := len(f.done) - 1; i >= 0; i-- {
		e := f.done[i]
		switch first := e.paths[0]; {
		case e.kind == makes && first.Covers(p) && p.Len() > first.Len() && !fits(e.shape, p.At(first.Len())):
			return missing("%s sets %s to %s", e.at, first, shapeNoun(e.shape))
		case e.kind == makes && first.Meets(p):
			return true // it may be what was made
		case e.kind == removes && first.Covers(p):
			return missing("%s removed it before", e.at)
		case e.kind == movesOff && first.Covers(p):
			return missing("%s put it elsewhere before", e.at)
		case e.kind == keeps && !meetsAny(e.paths, p):
			if op != "remove" {
				return missing("%s dropped it before", e.at)
			}
			f.v.warn(at, "has no effect: %s dropped it before", e.at)
			return false
		case e.kind == redacts && first.Covers(p) && p.Len() > first.Len():
			return missing("%s made a digest of all of %s before", e.at, first)
		case e.kind == redacts && first.Covers(p) && op == "redact":
			f.v.fault(at, "%s redacted it before", e.at)
			return false
		}
	}
	managed := fieldpath.Of("metadata", "managedFields")
	switch {
	case !managed.Covers(p) || f.keepsManagedFields:
		return f.v.knownPath(p, at, point)
	case op == "remove":
		f.v.warn(at, "has no effect: metadata.managedFields is removed before, unless keepManagedFields is true")
		return false
	default:
		return missing("metadata.managedFields is removed before, unless keepManagedFields is true")
	}
}

// wasted reports what was made or redacted before and is now gone, unless something may have used it in between.
func (f *transformFlow) wasted(by, what string, gone func(fieldpath.Path) bool) {
	var moved []fieldpath.Path
	for i := len(f.done) - 1; i >= 0; i-- {
		e := &f.done[i]
		switch {
		case e.kind == movesOff:
			moved = append(moved, e.paths[0])
		case meetsAny(moved, e.paths[0]): // it is elsewhere
		case e.kind == makes && e.readsObject:
			if gone(e.paths[0]) {
				f.waste(e, by, what)
			}
			return // its expression may have used all that was before
		case (e.kind == makes || e.kind == redacts) && gone(e.paths[0]):
			f.waste(e, by, what)
		}
	}
}

func (f *transformFlow) waste(e *effect, by, what string) {
	if !e.useless {
		f.v.fault(e.at, "is for nothing: it is %s by %s", what, by)
		e.useless = true
	}
}

// free checks that a new place can be free.
func (f *transformFlow) free(to fieldpath.Path, at string) bool {
	for i := len(f.done) - 1; i >= 0; i-- {
		e := f.done[i]
		switch first := e.paths[0]; {
		case (e.kind == removes || e.kind == movesOff) && first.Covers(to), e.kind == keeps && !meetsAny(e.paths, to):
			return true
		case e.kind == makes && e.certain && to.Covers(first):
			f.v.fault(at, "the new place is never free: %s sets it before", e.at)
			return false
		}
	}
	always := append(identity(), fieldpath.Of("metadata", "uid"), fieldpath.Of("metadata", "resourceVersion"))
	for _, known := range always {
		if to.Covers(known) {
			f.v.fault(at, "the new place is never free: every object has %s", to)
			return false
		}
	}
	return true
}

// misspelt warns of a new place that looks like a known one.
func (f *transformFlow) misspelt(p fieldpath.Path, at string, point func(int) string) {
	if p.At(0).Name != "metadata" || p.Len() < 2 || p.At(1).Kind != fieldpath.Name {
		return
	}
	if _, ok := metadataFields()[p.At(1).Name]; ok {
		return
	}
	var names []string
	for name := range metadataFields() {
		names = append(names, name)
	}
	if meant := suggest(p.At(1).Name, names); meant != "" {
		f.v.warn(at, "makes a field %s in metadata; did you mean %s?%s", p.At(1).Name, fieldpath.Of("metadata", meant).Join(p.Tail(2)), point(p.Offset(1)))
	}
}

// identityLost warns where consumers no longer see in the object what it is.
func (f *transformFlow) identityLost(at, does string, gone func(fieldpath.Path) bool) {
	var lost []string
	for _, p := range identity() {
		if gone(p) && !f.goneBefore(p) {
			lost = append(lost, p.String())
		}
	}
	if len(lost) > 0 {
		f.v.warn(at, "%s %s: what the object is can then be told only from the record's id, key and headers", does, strings.Join(lost, ", "))
	}
}

// knownElsewhere warns of digests that hide nothing.
func (f *transformFlow) knownElsewhere(p fieldpath.Path, at string) {
	for _, name := range []string{"name", "namespace", "uid", "resourceVersion"} {
		if known := fieldpath.Of("metadata", name); p.Covers(known) && !f.goneBefore(known) {
			f.v.warn(at, "hides %s in the object only: the record's id, key and headers hold what says which object it is", known)
			return
		}
	}
}

// copyMoved warns where the copy of the object that kubectl keeps is no longer where a redact looks for it.
func (f *transformFlow) copyMoved(at string) {
	kept := fieldpath.Of("metadata", "annotations", "kubectl.kubernetes.io/last-applied-configuration")
	for _, e := range f.done {
		if e.kind == movesOff && e.paths[0].Covers(kept) {
			f.v.warn(at, "does not find the copy of the object in the annotation %s, which %s put elsewhere: redact first, or remove it", kept.At(2).Name, e.at)
			return
		}
	}
}

func (f *transformFlow) goneBefore(p fieldpath.Path) bool {
	for _, e := range f.done {
		switch e.kind {
		case makes:
		case keeps:
			if !meetsAny(e.paths, p) {
				return true
			}
		default:
			if e.paths[0].Covers(p) {
				return true
			}
		}
	}
	return false
}
