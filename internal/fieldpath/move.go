package fieldpath

import (
	"errors"
	"fmt"
)

// Move takes what is in one place to another.
type Move struct {
	from, to Path
	// common is how many steps both begin with. Behind them are names only, so that each match has one new place.
	common int
}

// The reasons why a [Move] is impossible.
var (
	ErrSamePlace = errors.New("both are the same place")
	ErrInside    = errors.New("one is inside the other")
	ErrNotNames  = errors.New("up to the last [*] or index both must be the same")
)

// NewMove makes a move.
func NewMove(from, to Path) (Move, error) {
	m := Move{from: from, to: to}
	for m.common < min(from.Len(), to.Len()) && from.At(m.common) == to.At(m.common) {
		m.common++
	}
	switch {
	case from.Equal(to):
		return Move{}, ErrSamePlace
	case !from.Tail(m.common).IsNames() || !to.Tail(m.common).IsNames():
		return Move{}, ErrNotNames
	case m.common == from.Len() || m.common == to.Len():
		return Move{}, ErrInside
	}
	return m, nil
}

// From is the old place.
func (m Move) From() Path { return m.from }

// To is the new place.
func (m Move) To() Path { return m.to }

// Apply moves every match. It fails if there is something in the new place, or if that cannot be made; then some
// matches may have been moved. The error says nothing of the values.
func (m Move) Apply(object map[string]any) error {
	if m.common == 0 {
		return m.within(object)
	}
	w := walker{steps: m.from.steps[:m.common], visit: func(at place) error {
		members, ok := at.value().(map[string]any)
		if !ok {
			return nil
		}
		return m.within(members)
	}}
	return w.in(object, nil)
}

// within moves inside the map that both places have in common.
func (m Move) within(members map[string]any) error {
	from, to := m.from.Tail(m.common), m.to.Tail(m.common)
	w := walker{steps: from.steps, visit: func(at place) error {
		if to.Exists(members) {
			return fmt.Errorf("there is something at %s already", m.to)
		}
		if err := m.passable(members, to); err != nil {
			return err
		}
		value := at.value()
		delete(at.members, at.last().Name)
		return to.Set(members, value)
	}}
	return w.in(members, nil)
}

// passable fails where to leads through something that is no map. It speaks of the whole path, not of its tail.
func (m Move) passable(members map[string]any, to Path) error {
	for n := 1; n < to.Len(); n++ {
		var found any
		to.Head(n).Visit(members, func(value any) { found = value })
		if _, ok := found.(map[string]any); !ok && found != nil {
			return fmt.Errorf("%s is %s, not a map", m.to.Head(m.common+n), noun(found))
		}
	}
	return nil
}
