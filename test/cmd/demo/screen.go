package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen prints for people: aligned columns, cut to the terminal's width, in color where there is one.
type screen struct {
	out   io.Writer
	color bool
	width func() int // of the terminal; 0 if there is none
}

var _ io.Writer = (*screen)(nil)

func newScreen(out *os.File) *screen {
	fd := int(out.Fd())
	terminal := term.IsTerminal(fd)
	return &screen{
		out:   out,
		color: terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb",
		width: func() int {
			if width, _, err := term.GetSize(fd); terminal && err == nil {
				return width
			}
			return 0
		},
	}
}

// Write prints the progress of others.
func (s *screen) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		s.say("  " + strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

func (s *screen) say(text string) { fmt.Fprintln(s.out, s.paint(dim, "demo: "+text)) }

func (s *screen) hints(address, nats, kubeconfig string) {
	fmt.Fprintf(s.out, `
  records     %s, stream %s; as the demo reads them, they follow
  metrics     curl -s http://%s/metrics | grep ^kubeferry_
  status      curl -s http://%s/status
  take part   kubectl --kubeconfig %s -n %s create configmap mine --from-literal=a=b
  end         Ctrl-C

`, nats, streamName, address, address, kubeconfig, namespace)
	s.row("TIME", "", "TYPE", "OBJECT", "ID", "WHAT")
}

func (s *screen) record(r *record, summary string) {
	colors := map[string]string{added: green, modified: yellow, deleted: red}
	s.row(r.Time.Local().Format("15:04:05.000"), colors[r.Data.Type], r.Data.Type, r.object(), r.ID, summary)
}

// row prints one line. A terminal that is not wide gets less of the id, then of the time, and summaries that are cut.
func (s *screen) row(time, color, kind, object, id, summary string) {
	const wide, narrow = 150, 100
	width, timeWidth, idWidth := s.width(), 12, 58
	if 0 < width && width < wide {
		id, idWidth = shortID(id), 14
	}
	if 0 < width && width < narrow {
		time, timeWidth = cut(time, 8, ""), 8
	}
	head := fmt.Sprintf("%-*s  ", timeWidth, time)
	tail := fmt.Sprintf("  %-28s  %-*s  ", object, idWidth, id)
	if used := utf8.RuneCountInString(head) + 8 + utf8.RuneCountInString(tail); width > 0 {
		summary = cut(summary, width-used, "…")
	}
	fmt.Fprintln(s.out, strings.TrimRight(head+s.paint(color, fmt.Sprintf("%-8s", kind))+tail+summary, " "))
}

// shortID leaves what the other columns do not show: the beginning of the uid, and the resource version.
func shortID(id string) string {
	parts := strings.Split(id, "/")
	if len(parts) < 4 {
		return id
	}
	uid, resourceVersion := parts[len(parts)-3], parts[len(parts)-2]
	return cut(uid, 8, "…") + "/" + resourceVersion
}

// cut shortens text to width runes, the mark among them.
func cut(text string, width int, mark string) string {
	runes := []rune(text)
	if len(runes) <= width {
		return text
	}
	return string(runes[:max(width-utf8.RuneCountInString(mark), 0)]) + mark
}

// The colors, as ANSI sequences.
const (
	dim    = "\x1b[2m"
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	reset  = "\x1b[0m"
)

func (s *screen) paint(color, text string) string {
	if !s.color || color == "" {
		return text
	}
	return color + text + reset
}
