package config

import (
	"strings"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// canHold checks that a new place is not inside of what has no such place in any object.
func (f *transformFlow) canHold(p fieldpath.Path, at string, point func(int) string) bool {
	cannot := func(step int, format string, args ...any) {
		f.v.fault(at, "can never be put there: "+format+"%s", append(args, point(p.Offset(step)))...)
	}
	for i := len(f.done) - 1; i >= 0; i-- {
		e := f.done[i]
		first := e.paths[0]
		inside := first.Covers(p) && p.Len() > first.Len()
		switch {
		case (e.kind == removes || e.kind == movesOff) && first.Covers(p.Head(p.Len()-1)), e.kind == keeps && !meetsAny(e.paths, p.Head(p.Len()-1)):
			return true // maps on the way are made
		case e.kind == makes && inside && !fits(e.shape, p.At(first.Len())):
			cannot(first.Len(), "%s sets %s to %s", e.at, first, shapeNoun(e.shape))
			return false
		case e.kind == makes && inside:
			return true
		case e.kind == redacts && inside && first.IsNames():
			cannot(first.Len(), "%s made a digest of all of %s before", e.at, first)
			return false
		}
	}
	first := p.At(0).Name
	ok := true
	fault := func(step int, format string, args ...any) {
		ok = false
		cannot(step, strings.TrimPrefix(format, "never matches: "), args...)
	}
	switch {
	case (first == "apiVersion" || first == "kind") && p.Len() > 1:
		fault(1, "%s is text, and has nothing inside", first)
	case first == "metadata" && p.Len() > 1:
		if _, known := metadataFields()[p.At(1).Name]; known || p.At(1).Kind != fieldpath.Name {
			f.v.knownMetadata(p, fault)
		}
	}
	return ok
}

// canRead checks that an expression does not need what is gone in every object.
func (f *transformFlow) canRead(value *expr.Program, at string) bool {
	asked := func(gone func(fieldpath.Path) bool) bool {
		for _, r := range value.FieldUses() {
			if !r.Old && r.Asks && gone(fieldpath.Of(r.Path...)) {
				return true
			}
		}
		return false
	}
	for _, r := range value.FieldUses() {
		if r.Old || r.Optional || r.Asks || len(r.Path) == 0 {
			continue
		}
		p := fieldpath.Of(r.Path...)
		if e := f.goneBy(p); e != nil && !asked(e.gone) {
			f.v.fault(at, "has no value: %s is gone, through %s before%s", p, e.at, f.v.point(at, r.Offset))
			return false
		}
	}
	return true
}

// goneBy is what took away all that a path of names could find, nil if it may find something.
func (f *transformFlow) goneBy(p fieldpath.Path) *effect {
	for i := len(f.done) - 1; i >= 0; i-- {
		e := &f.done[i]
		switch {
		case e.kind == makes && e.paths[0].Meets(p):
			return nil
		case e.kind != makes && e.kind != redacts && e.gone(p):
			return e
		}
	}
	return nil
}

// gone reports whether the effect leaves nothing at a path.
func (e *effect) gone(p fieldpath.Path) bool {
	if e.kind == keeps {
		return !meetsAny(e.paths, p)
	}
	return e.paths[0].Covers(p)
}

// fits reports whether something of a shape can have such a step inside.
func fits(shape expr.Shape, step fieldpath.Step) bool {
	switch shape {
	case expr.ScalarShape:
		return false
	case expr.ListShape:
		return step.Kind != fieldpath.Name
	case expr.MapShape:
		return step.Kind != fieldpath.Index
	default:
		return true
	}
}

func shapeNoun(shape expr.Shape) string {
	switch shape {
	case expr.ListShape:
		return "a list"
	case expr.MapShape:
		return "a map"
	default:
		return "something that has nothing inside"
	}
}
