package fieldpath

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

// Kind says what a step selects.
type Kind uint8

// The kinds of a step.
const (
	Name  Kind = iota // the member of a map
	Index             // an item of a list
	Every             // every item of a list, every value of a map
)

// Step is one part of a path.
type Step struct {
	Kind  Kind
	Name  string // of a Name
	Index int    // of an Index
}

// Path names a place in an object, or several with [*]. It is immutable. [Parse], [New] and [Of] make paths. The zero value is not a valid path.
type Path struct{ steps []Step }

// New makes a path of steps.
func New(steps ...Step) Path { return Path{steps: steps} }

// Of makes a path of names.
func Of(names ...string) Path {
	steps := make([]Step, len(names))
	for i, name := range names {
		steps[i] = Step{Kind: Name, Name: name}
	}
	return Path{steps: steps}
}

// Len returns the number of steps.
func (p Path) Len() int { return len(p.steps) }

// At returns step i, counted from 0. It panics if there is no such step.
func (p Path) At(i int) Step { return p.steps[i] }

// Head returns the path of the first n steps.
func (p Path) Head(n int) Path { return Path{p.steps[:n:n]} }

// Join returns the path of the steps of p and then those of q.
func (p Path) Join(q Path) Path { return Path{steps: slices.Concat(p.steps, q.steps)} }

// Tail returns the path without its first n steps.
func (p Path) Tail(n int) Path { return Path{steps: p.steps[n:]} }

// Has reports whether a step of the path is of a kind.
func (p Path) Has(kind Kind) bool {
	return slices.ContainsFunc(p.steps, func(s Step) bool { return s.Kind == kind })
}

// namesOnly reports whether the path has at most one match, in which no step depends on the place of an item.
func (p Path) namesOnly() bool { return !p.Has(Index) && !p.Has(Every) }

// String returns the path in the notation that [Parse] reads. Equal paths have equal texts.
func (p Path) String() string {
	var b strings.Builder
	for i, step := range p.steps {
		switch {
		case step.Kind == Every:
			b.WriteString("[*]")
		case step.Kind == Index:
			b.WriteString("[" + strconv.Itoa(step.Index) + "]")
		case !isPlain(step.Name):
			quoted, _ := json.Marshal(step.Name) // a string can be encoded
			b.WriteString("[" + string(quoted) + "]")
		case i == 0:
			b.WriteString(step.Name)
		default:
			b.WriteString("." + step.Name)
		}
	}
	return b.String()
}

// isPlain reports whether a name needs no quotes.
func isPlain(name string) bool {
	digitsOnly := true
	for i := range len(name) {
		if !isWord(name[i]) {
			return false
		}
		digitsOnly = digitsOnly && isDigit(name[i])
	}
	return !digitsOnly
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isWord(c byte) bool {
	return isDigit(c) || c == '_' || c == '-' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
