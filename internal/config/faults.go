package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Fault is a mistake in the file.
type Fault struct {
	// File is the name that was given to [Load] or [Parse].
	File string
	// Line and Column count from 1; 0 if the fault is not about a place in the file.
	Line, Column int
	// Path of the value, as in pipelines[1].sink; empty for the file as a whole.
	Path    string
	Message string
}

// String is "config.yaml:12: pipelines[1].sink: message".
func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	if f.Path != "" {
		b.WriteString(": " + f.Path)
	}
	b.WriteString(": " + f.Message)
	return b.String()
}

// Faults are all the mistakes in a file, in its order. It is the error of [Load] and [Parse].
type Faults []Fault

// Error has one line per fault.
func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// Warning is a choice that works and that its user may not have meant.
type Warning Fault

// String is like [Fault.String].
func (w Warning) String() string { return Fault(w).String() }

func sortFaults(faults []Fault) {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

// maxFaults keeps the work on a file that is wrong throughout, one of another program perhaps, in bounds.
const maxFaults = 1000

// faultList gathers the faults of one file.
type faultList struct {
	file   string
	faults []Fault
	// broken holds the paths whose values are not what the file means, so that nothing can be concluded from them.
	broken []string
}

// add reports a fault of the value at path.
func (l *faultList) add(n *node, path, message string) {
	l.addOnce(n.line, n.column, path, message)
	l.mark(path)
}

// mark notes that the value at path is not what the file means.
func (l *faultList) mark(path string) {
	if len(l.faults) < maxFaults { // after that nothing is reported anyway
		l.broken = append(l.broken, path)
	}
}

// addOnce is addAt for what an alias may bring up at each of its uses: the same mistake is told once.
func (l *faultList) addOnce(line, column int, path, message string) {
	if !slices.ContainsFunc(l.faults, func(f Fault) bool {
		return f.Line == line && f.Column == column && f.Message == message
	}) {
		l.addAt(line, column, path, message)
	}
}

// addAt reports a fault that does not keep later steps from looking at path.
func (l *faultList) addAt(line, column int, path, message string) {
	if len(l.faults) == maxFaults {
		return
	}
	l.faults = append(l.faults, Fault{File: l.file, Line: line, Column: column, Path: path, Message: message})
}

// isBroken reports whether a fault of an earlier step makes the value at path, or a part of it, meaningless.
func (l *faultList) isBroken(path string) bool {
	return slices.ContainsFunc(l.broken, func(b string) bool { return within(path, b) || within(b, path) })
}
