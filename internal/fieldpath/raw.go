package fieldpath

import (
	"bytes"
	"encoding/binary"
	"slices"
)

// DifferJSON is [Set.Differ] on the JSON of two objects, in one pass over each that decodes nothing but what it has to
// compare and finds written differently: a number, or a string with escapes.
//
// The JSON must be valid: what is not compared is not checked. Of two members of one name, which RFC 8259 leaves
// undefined, either may count.
func (s *Set) DifferJSON(before, after []byte) (bool, error) {
	if bytes.Equal(before, after) {
		return false, nil
	}
	if s.root.leaf {
		equal, err := equalJSON(before, after)
		return !equal, err
	}
	oldMatches, err := s.find(before)
	if err != nil {
		return false, err
	}
	newMatches, err := s.find(after)
	if err != nil {
		return false, err
	}
	if len(oldMatches) != len(newMatches) {
		return true, nil
	}
	if !slices.EqualFunc(oldMatches, newMatches, samePlace) {
		slices.SortFunc(oldMatches, comparePlaces)
		slices.SortFunc(newMatches, comparePlaces)
		if !slices.EqualFunc(oldMatches, newMatches, samePlace) {
			return true, nil
		}
	}
	for i := range oldMatches {
		if equal, err := equalJSON(oldMatches[i].value, newMatches[i].value); err != nil || !equal {
			return err == nil, err
		}
	}
	return false, nil
}

// match is a value and the place where it was found: the keys and indices that lead there, so that no two are alike.
type match struct {
	place []byte
	value []byte
}

func samePlace(a, b match) bool { return bytes.Equal(a.place, b.place) }

func comparePlaces(a, b match) int { return bytes.Compare(a.place, b.place) }

// find lists the matches in JSON, in its order.
func (s *Set) find(data []byte) ([]match, error) {
	f := finder{scanner: scanner{data: data}, set: s, matches: make([]match, 0, s.leaves)}
	_, err := f.value(s.start())
	return f.matches, err
}

type finder struct {
	scanner
	set     *Set
	place   []byte // of the value that is being read
	matches []match
}

// value reads the next value, in which the nodes are to be found. It reports whether all is found.
func (f *finder) value(nodes []*node) (done bool, err error) {
	switch f.peek() {
	case '{':
		return f.object(nodes)
	case '[':
		return f.array(nodes)
	default:
		return false, f.skip()
	}
}

func (f *finder) object(nodes []*node) (bool, error) {
	depth := len(f.place)
	for first := true; ; first = false {
		key, more, err := f.member(first)
		if err != nil || !more {
			return false, err
		}
		next, leaf := member(nodes, string(key))
		f.place = append(f.place[:depth], 'm')
		f.place = append(binary.AppendUvarint(f.place, uint64(len(key))), key...)
		if done, err := f.below(next, leaf); err != nil || done {
			return done, err
		}
		f.place = f.place[:depth]
	}
}

func (f *finder) array(nodes []*node) (bool, error) {
	depth := len(f.place)
	for i := 0; ; i++ {
		more, err := f.element(i == 0)
		if err != nil || !more {
			return false, err
		}
		next, leaf := item(nodes, i)
		f.place = binary.AppendUvarint(append(f.place[:depth], 'i'), uint64(i))
		if done, err := f.below(next, leaf); err != nil || done {
			return done, err
		}
		f.place = f.place[:depth]
	}
}

// below reads a value that is a match, or in which there may be some, or neither.
func (f *finder) below(nodes []*node, leaf bool) (bool, error) {
	switch {
	case leaf:
		f.peek()
		from := f.pos
		err := f.skip()
		f.matches = append(f.matches, match{bytes.Clone(f.place), f.data[from:f.pos]})
		return f.set.finite && len(f.matches) == f.set.leaves, err
	case len(nodes) > 0:
		return f.value(nodes)
	default:
		return false, f.skip()
	}
}
