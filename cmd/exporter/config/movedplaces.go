package config

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// movedPlaces are the places that transforms moved. There a path means something else than in the observed object, and a redact that misses
// its value would send it.
type movedPlaces struct {
	shortened []shortenedList  // their indices mean other items
	made      []fieldpath.Path // places that got a value
}

type shortenedList struct {
	path fieldpath.Path
	by   string // the transform, as a path of the configuration
}

// add notes what one transform moves.
func (m *movedPlaces) add(t *Transform, at string) {
	for i, p := range t.Remove {
		if last := p.Len() - 1; last > 0 && p.At(last).Kind == fieldpath.Index {
			m.shortened = append(m.shortened, shortenedList{p.Head(last), index(at+".remove", i)})
		}
	}
	for _, p := range t.Keep {
		for n := range p.Len() {
			if list := p.Head(n); p.At(n).Kind != fieldpath.Name && !keepsAll(t.Keep, list) {
				m.shortened = append(m.shortened, shortenedList{list, at + ".keep"})
			}
		}
	}
	for _, r := range t.Rename {
		for _, list := range m.shortened {
			if from := r.From(); from.Covers(list.path) {
				m.shortened = append(m.shortened, shortenedList{r.To().Join(list.path.Tail(from.Len())), list.by})
			}
		}
		m.made = append(m.made, r.To())
	}
	for _, a := range t.Set {
		m.made = append(m.made, a.Path)
	}
}

// mayMake reports whether a transform before may have put something in a place.
func (m *movedPlaces) mayMake(p fieldpath.Path) bool { return slices.ContainsFunc(m.made, p.Meets) }

// keepsAll reports whether a keep leaves each item of a list.
func keepsAll(kept []fieldpath.Path, list fieldpath.Path) bool {
	for _, p := range kept {
		if p.Covers(list) || p.Len() == list.Len()+1 && p.At(list.Len()).Kind == fieldpath.Every && p.Head(list.Len()).Covers(list) {
			return true
		}
	}
	return false
}

// sameItem checks that a path selects no item by its index in a list that lost items.
func (v *validator) sameItem(p usedPath, moved *movedPlaces) {
	for i := range p.Len() {
		if p.At(i).Kind != fieldpath.Index {
			continue
		}
		for _, list := range moved.shortened {
			if list.path.Len() == i && list.path.Meets(p.Path) {
				v.fault(p.at, "may %s another item than is meant: %s takes items out of %s, and those behind them move up; put this before it, or write [*] for every item",
					p.op, list.by, list.path)
				return
			}
		}
	}
}
