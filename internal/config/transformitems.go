package config

import "github.com/kubeferry/kubeferry/internal/fieldpath"

// movedItems is a list whose items may stand elsewhere than in the object that was observed. Who then names one of them by
// number means another one, perhaps: a redact that misses its item leaks what it was written for.
type movedItems struct {
	list fieldpath.Path
	at   string // what moved them, in the configuration
}

// sameItem checks that a path names no item of a list by number whose items may have moved.
func (f *transformFlow) sameItem(p fieldpath.Path, at, op string, point func(int) string) bool {
	for i := range p.Len() {
		if p.At(i).Kind != fieldpath.Index {
			continue
		}
		for _, m := range f.moved {
			if m.list.Len() == i && m.list.Meets(p) {
				f.v.fault(at, "may %s another item than is meant: %s takes items out of %s, and those behind them move up; put this before it, or write [*] for every item%s",
					op, m.at, m.list, point(p.Offset(i)))
				return false
			}
		}
	}
	return true
}

// moveItems notes the lists whose items the effects of one transform may have moved.
func (f *transformFlow) moveItems(fresh []effect) {
	for i, e := range fresh {
		first := e.paths[0]
		switch e.kind {
		case removes:
			if last := first.Len() - 1; first.At(last).Kind == fieldpath.Index {
				f.moved = append(f.moved, movedItems{first.Head(last), e.at})
			}
		case keeps:
			for _, p := range e.paths {
				for n := range p.Len() {
					if list := p.Head(n); p.At(n).Kind != fieldpath.Name && !keepsAll(e.paths, list) {
						f.moved = append(f.moved, movedItems{list, e.at})
					}
				}
			}
		case movesOff: // what it makes comes next
			for _, m := range f.moved {
				if first.Covers(m.list) {
					f.moved = append(f.moved, movedItems{fresh[i+1].paths[0].Join(m.list.Tail(first.Len())), m.at})
				}
			}
		case makes:
			if e.certain {
				f.madeAnew(first)
			}
		case redacts:
		}
	}
}

// keepsAll reports whether a keep leaves each item of a list.
func keepsAll(kept []fieldpath.Path, list fieldpath.Path) bool {
	for _, p := range kept {
		if p.Covers(list) || p.Len() == list.Len()+1 && p.At(list.Len()).Kind == fieldpath.Every && p.Head(list.Len()).Covers(list) {
			return true
		}
	}
	return false
}

// madeAnew forgets what was said of lists in a place that has another value now.
func (f *transformFlow) madeAnew(place fieldpath.Path) {
	var rest []movedItems
	for _, m := range f.moved {
		if !place.Covers(m.list) {
			rest = append(rest, m)
		}
	}
	f.moved = rest
}
