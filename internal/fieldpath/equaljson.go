package fieldpath

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// equalJSON reports whether two JSON values are the same once decoded.
func equalJSON(a, b []byte) (bool, error) {
	if bytes.Equal(a, b) {
		return true, nil
	}
	c := comparer{a: scanner{data: a}, b: scanner{data: b}}
	return c.values()
}

// comparer reads two texts side by side. When it finds a difference, it stops where it is.
type comparer struct{ a, b scanner }

func (c *comparer) values() (bool, error) {
	first, second := c.a.peek(), c.b.peek()
	switch {
	case first == '{' && second == '{':
		return c.objects()
	case first == '[' && second == '[':
		return c.arrays()
	}
	a, err := c.a.rest()
	if err != nil {
		return false, err
	}
	b, err := c.b.rest()
	switch {
	case err != nil:
		return false, err
	case bytes.Equal(a, b):
		return true, nil
	case first == '"' && second == '"':
		return equalStrings(a, b)
	case isNumber(first) && isNumber(second):
		return equalNumbers(a, b)
	default:
		return false, nil
	}
}

// rest reads the next value and returns its text.
func (s *scanner) rest() ([]byte, error) {
	s.peek()
	from := s.pos
	err := s.skip()
	return s.data[from:s.pos], err
}

func isNumber(c byte) bool { return c == '-' || isDigit(c) }

func equalStrings(a, b []byte) (bool, error) {
	if bytes.IndexByte(a, '\\') < 0 && bytes.IndexByte(b, '\\') < 0 {
		return false, nil // their bytes differ
	}
	first, err := unquote(a)
	if err != nil {
		return false, err
	}
	second, err := unquote(b)
	return first == second, err
}

func equalNumbers(a, b []byte) (bool, error) {
	first, err := number(string(a))
	if err != nil {
		return false, err
	}
	second, err := number(string(b))
	return err == nil && Equal(first, second), err
}

// number decodes as apimachinery does: whole numbers that fit become int64.
func number(text string) (any, error) {
	if !strings.ContainsAny(text, ".eE") {
		if i, err := strconv.ParseInt(text, 10, 64); err == nil {
			return i, nil
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("number that does not fit: %w", strconv.ErrRange) // without the number itself
	}
	return f, nil
}

func (c *comparer) arrays() (bool, error) {
	for first := true; ; first = false {
		more, err := c.a.element(first)
		if err != nil {
			return false, err
		}
		other, err := c.b.element(first)
		if err != nil || more != other {
			return false, err
		}
		if !more {
			return true, nil
		}
		if equal, err := c.values(); err != nil || !equal {
			return false, err
		}
	}
}

// objects compares members as they come, which is in the same order where one API server wrote both.
func (c *comparer) objects() (bool, error) {
	startA, startB := c.a.pos, c.b.pos
	for first := true; ; first = false {
		keyA, more, err := c.a.member(first)
		if err != nil {
			return false, err
		}
		keyB, other, err := c.b.member(first)
		switch {
		case err != nil:
			return false, err
		case !more || !other:
			return more == other, nil
		case !bytes.Equal(keyA, keyB):
			c.a.pos, c.b.pos = startA, startB
			return c.unordered()
		}
		if equal, err := c.values(); err != nil || !equal {
			return false, err
		}
	}
}

// unordered compares objects whose members are in another order, or not the same.
func (c *comparer) unordered() (bool, error) {
	a, err := c.a.members()
	if err != nil {
		return false, err
	}
	b, err := c.b.members()
	if err != nil || len(a) != len(b) {
		return false, err
	}
	slices.SortFunc(a, comparePlaces)
	slices.SortFunc(b, comparePlaces)
	if !slices.EqualFunc(a, b, samePlace) {
		return false, nil
	}
	for i := range a {
		if equal, err := equalJSON(a[i].value, b[i].value); err != nil || !equal {
			return false, err
		}
	}
	return true, nil
}

// members reads an object.
func (s *scanner) members() ([]match, error) {
	var members []match
	for first := true; ; first = false {
		key, more, err := s.member(first)
		if err != nil || !more {
			return members, err
		}
		value, err := s.rest()
		if err != nil {
			return nil, err
		}
		members = append(members, match{key, value})
	}
}
