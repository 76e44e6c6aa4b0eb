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
	// Unset is set if the value was not checked, because of a variable or a file that is not there ([Options].AllowUnset).
	Unset bool
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

// maxFaults bounds the work on a file that is not a configuration of kubeferry at all.
const maxFaults = 1000

// faultList gathers the faults of one file.
type faultList struct {
	file   string
	faults Faults
	// broken holds the paths whose values could not be decoded; later checks skip them.
	broken []string
}

// add reports a fault at a place of the file.
func (l *faultList) add(line, column int, path, message string) {
	l.report(Fault{File: l.file, Line: line, Column: column, Path: path, Message: message})
}

// report adds a fault. One that is seen at each use of an alias is reported once.
func (l *faultList) report(fault Fault) {
	key := lastStep(fault.Path)
	same := func(f Fault) bool {
		return f.Line == fault.Line && f.Column == fault.Column && f.Message == fault.Message && lastStep(f.Path) == key
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
