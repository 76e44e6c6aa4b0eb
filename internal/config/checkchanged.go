package config

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// changed checks a filter for changed paths.
func (v *validator) changed(paths []fieldpath.Path, at string, keepsManagedFields bool) {
	if v.has(at) && len(paths) == 0 {
		v.fault(at, "must not be empty: no MODIFIED would pass")
	}
	if len(paths) > maxPaths {
		v.fault(at, "must not hold more than %d paths", maxPaths)
		return
	}
	v.repeated(paths, at)
	never := !slices.ContainsFunc(paths, func(p fieldpath.Path) bool { return !immutable(p) })
	for i, p := range paths {
		path := index(at, i)
		if p.Len() == 0 {
			continue
		}
		switch {
		case immutable(p) && never:
			v.fault(path, "never changes: %s is the same in all versions of an object", p)
		case immutable(p):
			v.warn(path, "has no effect: %s is the same in all versions of an object", p)
		}
		v.knownPath(p, path, v.pointer(path))
		switch {
		case p.Covers(fieldpath.Of("metadata", "resourceVersion")):
			v.warn(path, "lets every MODIFIED pass: metadata.resourceVersion is another one in each version")
		case fieldpath.Of("metadata", "managedFields").Covers(p) && !keepsManagedFields:
			v.fault(path, "never changes, because metadata.managedFields is removed before, unless keepManagedFields is true")
		}
	}
}

// pointer is [validator.point] for one path.
func (v *validator) pointer(path string) func(int) string {
	return func(offset int) string { return v.point(path, offset) }
}

// repeated looks for paths that are in a list twice, or inside another one of it.
func (v *validator) repeated(paths []fieldpath.Path, at string) {
	for i, p := range paths {
		j := slices.IndexFunc(paths, func(other fieldpath.Path) bool { return other.Len() > 0 && other.Covers(p) && !p.Equal(other) })
		switch {
		case p.Len() == 0:
		case slices.ContainsFunc(paths[:i], p.Equal):
			v.fault(index(at, i), "%s is in this list already", v.shown(index(at, i)))
		case j >= 0:
			v.warn(index(at, i), "has no effect: it is inside %s, which is in the list too", v.shown(index(at, j)))
		}
	}
}

// onLeave checks that something can leave.
func (v *validator) onLeave(p *Pipeline, at string) {
	if p.OnLeave != OnLeaveDeleted {
		return
	}
	for i, filter := range p.Filters {
		if v.has(index(at+".filters", i)+".expr") && (filter.Program == nil || filter.Program.Uses().ObjectOnly()) {
			return
		}
	}
	v.warn(at+".onLeave", "has no effect: only an expr that reads object and resource and nothing else can say that an object leaves, and the filters have none")
}

// diff checks that the records have a place for a difference.
func (v *validator) diff(p *Pipeline, at string) {
	switch {
	case p.Diff == DiffNone || v.broken.isBroken(at+".format") || v.broken.isBroken(at+".profile"):
	case p.Format == FormatRaw:
		v.fault(at+".diff", "a raw record is the bare object, and has no place for a difference; use another format, or diff: none")
	case p.Profile == ProfileKnative:
		v.fault(at+".diff", "the data of a knative record is the bare object, and has no place for a difference; use the profile kubeferry, or diff: none")
	}
}
