// Package table shows changes to people: a line for each, with what is different, cut to the terminal's width.
package table

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// Table prints aligned columns, in color at a terminal.
type Table struct {
	Out   io.Writer
	Color bool
	Width func() int // of the terminal; 0 if there is none
	// Detail names a column before the last one, which a terminal that is not wide has no room for; empty for none.
	Detail string

	objectWidth int
}

// New makes a table on an output, which may be a terminal.
func New(out io.Writer, detail string) *Table {
	t := &Table{Out: out, Width: func() int { return 0 }, Detail: detail}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		t.Color = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
		t.Width = func() int {
			width, _, _ := term.GetSize(int(file.Fd()))
			return width
		}
	}
	return t
}

// Header prints the names of the columns.
func (t *Table) Header() { t.line("TIME", "TYPE", "OBJECT", t.Detail, "WHAT") }

// Row prints a change.
func (t *Table) Row(at time.Time, change, object, detail, what string) {
	t.line(at.Local().Format("15:04:05.000"), change, object, detail, what)
}

func (t *Table) narrower(than int) bool {
	width := t.Width()
	return 0 < width && width < than
}

// line prints the columns. A terminal that is narrow gets less of the time, and the last column is cut to its width.
func (t *Table) line(at, change, object, detail, what string) {
	timeWidth := 12
	if t.narrower(100) {
		timeWidth, at = 8, Cut(at, 8, "")
	}
	t.objectWidth = min(max(t.objectWidth, 28, utf8.RuneCountInString(object)), 48)
	head := fmt.Sprintf("%-*s  ", timeWidth, at)
	tail := fmt.Sprintf("  %-*s  ", t.objectWidth, Plain(object))
	if t.Detail != "" && !t.narrower(150) {
		tail += fmt.Sprintf("%-56s  ", Plain(detail))
	}
	what = Plain(what)
	if width := t.Width(); width > 0 {
		what = Cut(what, width-utf8.RuneCountInString(head)-8-utf8.RuneCountInString(tail), "…")
	}
	colors := map[string]string{"ADDED": green, "MODIFIED": yellow, "DELETED": red, "GAP": red}
	fmt.Fprintln(t.Out, strings.TrimRight(head+t.Paint(colors[change], fmt.Sprintf("%-8s", change))+tail+what, " "))
}

// Plain returns text in one line without control characters, which an object may hold to confuse a terminal.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return '\uFFFD'
		}
		return r
	}, text)
}

// Line returns text that may come from anywhere in one line, without control characters and superfluous space.
func Line(text string) string { return strings.Join(strings.Fields(Plain(text)), " ") }

// Cut shortens text to width runes, the mark among them.
func Cut(text string, width int, mark string) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(width-utf8.RuneCountInString(mark), 0)]) + mark
}

// The colors, as ANSI sequences.
const (
	Dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

// Paint returns text in a color, if there are colors.
func (t *Table) Paint(color, text string) string {
	if !t.Color || color == "" {
		return text
	}
	return color + text + reset
}
