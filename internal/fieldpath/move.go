package fieldpath

import (
	"errors"
	"fmt"
	"slices"
)

// Move moves a value from one place of an object to another.
type Move struct {
	from, to Path
	// common is how many steps both begin with. Behind them are names only, so that each match has one new place.
	common int
}

// NewMove returns the move from one path to another. It fails if both are the same, if one is inside the other, or if they differ before their
// last [*] or index.
func NewMove(from, to Path) (Move, error) {
	m := Move{from: from, to: to}
	for m.common < min(from.Len(), to.Len()) && from.At(m.common) == to.At(m.common) {
		m.common++
	}
	switch {
	case slices.Equal(from.steps, to.steps):
		return Move{}, errors.New("both are the same place")
	case !from.Tail(m.common).namesOnly() || !to.Tail(m.common).namesOnly():
		return Move{}, errors.New("up to the last [*] or index both must be the same, as in spec.containers[*].env: spec.containers[*].environment")
	case m.common == from.Len() || m.common == to.Len():
		return Move{}, errors.New("one is inside the other")
	}
	return m, nil
}

// From returns the old place.
func (m Move) From() Path { return m.from }

// To returns the new place.
func (m Move) To() Path { return m.to }

// Apply moves each match of the old place. It fails if the new place has a value already, or cannot be made. Then some matches
// may be moved already. The error contains no value of the object.
func (m Move) Apply(object map[string]any) error {
	if m.common == 0 {
		return m.within(object)
	}
	var err error
	m.from.Head(m.common).Visit(object, func(value any) {
		if members, ok := value.(map[string]any); ok && err == nil {
			err = m.within(members)
		}
	})
	return err
}

// within moves inside the map that both places have in common.
func (m Move) within(members map[string]any) error {
	common := m.from.steps[:m.common:m.common]
	w := walker{steps: m.from.steps, visit: func(from place) error {
		if m.to.Tail(m.common).Exists(members) {
			return fmt.Errorf("there is something at %s already", m.to)
		}
		put := walker{steps: m.to.steps, create: true, visit: func(to place) error {
			to.set(from.value())
			return nil
		}}
		if err := put.in(members, common); err != nil {
			return err
		}
		delete(from.members, from.last().Name)
		return nil
	}}
	return w.in(members, common)
}
