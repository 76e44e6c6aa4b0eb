// Package progress says what is being built, and for how long already.
package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// quick is how long a step may take before it is worth a line.
	quick = time.Second
	// between is the time between the lines about a step where there is no terminal.
	between = 30 * time.Second
)

// Log is where progress goes. At a terminal its last line is what runs, and is written again every second.
type Log struct {
	mu       sync.Mutex // guards what follows
	lines    io.Writer
	terminal io.Writer // nil: there is none
	running  []*step
}

type step struct {
	name, about string
	begun       time.Time
	said        time.Time // zero: nothing yet
}

// New makes a log whose lines go to one writer. If file is a terminal, what runs is shown there.
func New(lines io.Writer, file *os.File) *Log {
	l := &Log{lines: lines}
	if term.IsTerminal(int(file.Fd())) {
		l.terminal = file
	}
	return l
}

// Write writes whole lines of others.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.line(string(p))
	return len(p), nil
}

// line writes lines above what is shown at the terminal; l.mu is held.
func (l *Log) line(text string) {
	l.clear()
	_, _ = io.WriteString(l.lines, text)
	l.show()
}

func (l *Log) clear() {
	if l.terminal != nil {
		_, _ = io.WriteString(l.terminal, "\r\x1b[K")
	}
}

func (l *Log) show() {
	var all []string
	for _, s := range l.running {
		if !s.said.IsZero() {
			all = append(all, fmt.Sprintf("%s for %s", s.name, since(s.begun)))
		}
	}
	if l.terminal != nil && len(all) > 0 {
		_, _ = io.WriteString(l.terminal, "building "+strings.Join(all, ", and "))
	}
}

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Second) }

// Build runs what builds the named, and says so unless that is quick. About says how long it takes, or is empty. A writer that is no [Log]
// gets lines.
func Build(log io.Writer, name, about string, run func() error) error {
	l, ok := log.(*Log)
	if !ok {
		l = &Log{lines: log}
	}
	s := &step{name: name, about: about, begun: time.Now()}
	l.mu.Lock()
	l.running = append(l.running, s)
	l.mu.Unlock()
	ended := make(chan struct{})
	var following sync.WaitGroup
	following.Go(func() { l.follow(s, ended) })
	err := run()
	close(ended)
	following.Wait()
	l.end(s, err)
	return err
}

func (l *Log) follow(s *step, ended <-chan struct{}) {
	tick := time.NewTicker(quick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			l.tick(s)
		case <-ended:
			return
		}
	}
}

func (l *Log) tick(s *step) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case s.said.IsZero():
		s.said = time.Now()
		text := "building " + s.name
		if s.about != "" {
			text += ", which takes " + s.about
		}
		l.line(text + "\n")
	case l.terminal != nil:
		l.clear()
		l.show()
	case time.Since(s.said) >= between:
		s.said = time.Now()
		l.line(fmt.Sprintf("still building %s, for %s\n", s.name, since(s.begun)))
	}
}

func (l *Log) end(s *step, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n, other := range l.running {
		if other == s {
			l.running = append(l.running[:n:n], l.running[n+1:]...)
			break
		}
	}
	switch {
	case s.said.IsZero():
	case err != nil:
		l.clear()
	default:
		l.line(fmt.Sprintf("built %s in %s\n", s.name, since(s.begun)))
	}
}
