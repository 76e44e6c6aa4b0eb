package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Fault is a mistake in the file, or a warning: a choice that works and that its user may not have meant.
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
	place := f.File
	if f.Line > 0 {
		place += ":" + strconv.Itoa(f.Line)
	}
	if f.Path != "" {
		place += ": " + f.Path
	}
	return place + ": " + f.Message
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

// maxFaults keeps the work on a file that is wrong throughout, one of another program perhaps, in bounds.
const maxFaults = 1000

// faultList gathers the faults of one file.
type faultList struct {
	file   string
	faults Faults
	// broken holds the paths whose values are not what the file means, so that nothing can be concluded from them.
	broken []string
}

// add reports a fault at a place of the file. A fault that is seen at each use of an alias is reported once.
func (l *faultList) add(line, column int, path, message string) {
	fault := Fault{l.file, line, column, path, message}
	key := lastStep(path)
	same := func(f Fault) bool {
		return f.Line == line && f.Column == column && f.Message == message && lastStep(f.Path) == key
	}
	if len(l.faults) < maxFaults && !slices.ContainsFunc(l.faults, same) {
		l.faults = append(l.faults, fault)
	}
}

// addBroken reports a fault of the value n at path, which is not used any further.
func (l *faultList) addBroken(n *node, path, format string, args ...any) {
	l.add(n.line, n.column, path, fmt.Sprintf(format, args...))
	l.setBroken(path)
}

// setBroken notes that the value at path is not what the file means.
func (l *faultList) setBroken(path string) {
	if len(l.faults) < maxFaults { // after that nothing is reported anyway
		l.broken = append(l.broken, path)
	}
}

// isBroken reports whether the value at path, or a part of it, is not what the file means.
func (l *faultList) isBroken(path string) bool {
	return slices.ContainsFunc(l.broken, func(b string) bool { return within(path, b) || within(b, path) })
}

// sorted returns the faults in the order of the file.
func (l *faultList) sorted() Faults {
	slices.SortStableFunc(l.faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return l.faults
}
