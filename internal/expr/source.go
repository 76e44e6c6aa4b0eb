package expr

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
)

// Fault is a mistake in an expression, or something in it that was perhaps not meant.
type Fault struct {
	// Offset in bytes of the place in the text; it may be just behind the last one.
	Offset int
	// Line and Column count from 1, columns in characters.
	Line, Column int
	Message      string
}

// String is the message behind the place: "1:8: there is no variable …".
func (f Fault) String() string { return fmt.Sprintf("%d:%d: %s", f.Line, f.Column, f.Message) }

// Faults are all that is wrong with an expression, in the order of their places. It is the error of [Compile].
type Faults []Fault

// Error has one line for each.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// sorted puts faults in order and says what is said twice once.
func sorted(faults []Fault) Faults {
	slices.SortStableFunc(faults, func(a, b Fault) int { return a.Offset - b.Offset })
	return slices.Compact(faults)
}

// source is an expression's text.
type source struct{ text string }

func newSource(text string) *source { return &source{text} }

// fault is a Fault at a byte offset.
func (s *source) fault(offset int, format string, args ...any) Fault {
	line, column := s.place(offset)
	return Fault{offset, line, column, fmt.Sprintf(format, args...)}
}

func (s *source) place(offset int) (line, column int) {
	before := s.text[:offset]
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}

// at is the byte offset of a CEL location, whose line counts from 1 and whose column from 0, in characters.
func (s *source) at(l common.Location) int {
	offset := 0
	for range l.Line() - 1 {
		next := strings.IndexByte(s.text[offset:], '\n')
		if next < 0 {
			break
		}
		offset += next + 1
	}
	return s.skip(offset, l.Column())
}

// skip is the byte offset some characters behind one.
func (s *source) skip(offset, characters int) int {
	for ; characters > 0 && offset < len(s.text); characters-- {
		_, size := utf8.DecodeRuneInString(s.text[offset:])
		offset += size
	}
	return offset
}

// of is the byte offset of a node: of a call its bracket, of an operator the operator, of a selection the dot.
func (s *source) of(a *ast.AST, id int64) (offset int, ok bool) {
	r, ok := a.SourceInfo().GetOffsetRange(id)
	if !ok {
		return 0, false
	}
	return s.skip(0, int(r.Start)), true
}

// start is where the expression begins, for what is about the whole of it.
func (s *source) start() int {
	return len(s.text) - len(strings.TrimLeftFunc(s.text, unicode.IsSpace))
}

// function is where the name of the function begins whose bracket is at offset; it is offset for an operator.
func (s *source) function(offset int, name string) int {
	if strings.HasSuffix(s.text[:offset], name) {
		return offset - len(name)
	}
	if word := lastWord(s.text[:offset]); word != "" && strings.HasSuffix(name, word) {
		return offset - len(word)
	}
	return offset
}
