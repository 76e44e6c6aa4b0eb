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

// String is the message behind the place: "1:8: undeclared reference to …".
func (f Fault) String() string { return fmt.Sprintf("%d:%d: %s", f.Line, f.Column, f.Message) }

// Faults are all that is wrong with an expression, in the order of their places. It is the error of [Compile].
type Faults []Fault

// Error has one line for each fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// sorted orders faults by their places and removes repetitions.
func sorted(faults []Fault) Faults {
	slices.SortStableFunc(faults, func(a, b Fault) int { return a.Offset - b.Offset })
	return slices.Compact(faults)
}

// source is the text of an expression.
type source string

// fault is a Fault at a byte offset.
func (s source) fault(offset int, format string, args ...any) Fault {
	line, column := s.place(offset)
	return Fault{offset, line, column, fmt.Sprintf(format, args...)}
}

// faults are cel-go's own messages, without the list of all tokens that the parser would have taken.
func (s source) faults(issues []*common.Error) Faults {
	text := common.NewTextSource(string(s))
	faults := make([]Fault, len(issues))
	for i, issue := range issues {
		runes, _ := text.LocationOffset(issue.Location)
		message, _, _ := strings.Cut(issue.Message, " expecting {")
		faults[i] = s.fault(s.offset(runes), "%s", message)
	}
	return sorted(faults)
}

func (s source) place(offset int) (line, column int) {
	before := string(s[:offset])
	start := strings.LastIndexByte(before, '\n') + 1
	return strings.Count(before, "\n") + 1, utf8.RuneCountInString(before[start:]) + 1
}

// offset is that of a character in bytes.
func (s source) offset(runes int32) int {
	for i := range s {
		if runes <= 0 {
			return i
		}
		runes--
	}
	return len(s)
}

// of is the byte offset of a node: of a call its bracket, of an operator the operator, of a selection the dot.
func (s source) of(a *ast.AST, id int64) int {
	r, _ := a.SourceInfo().GetOffsetRange(id)
	return s.offset(r.Start)
}

// named is the byte offset of a name that a node contains.
func (s source) named(a *ast.AST, id int64, name string) int {
	at := s.of(a, id)
	return at + max(0, strings.Index(string(s[at:]), name))
}

// start is where the expression begins, for what is about the whole of it.
func (s source) start() int {
	return len(s) - len(strings.TrimLeftFunc(string(s), unicode.IsSpace))
}
