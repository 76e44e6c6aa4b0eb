package main

import (
	"fmt"
	"io"
	"os"
)

// isTerminal reports whether people read what is written.
func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// colorMode is when to write colours.
type colorMode string

const (
	colorAuto   colorMode = "auto"
	colorAlways colorMode = "always"
	colorNever  colorMode = "never"
)

// wanted reports whether to write colours to w: at a terminal, unless the environment says otherwise (no-color.org).
func (m colorMode) wanted(w io.Writer, getenv func(string) string) (bool, error) {
	switch m {
	case colorAlways:
		return true, nil
	case colorNever:
		return false, nil
	case colorAuto:
		return isTerminal(w) && getenv("NO_COLOR") == "" && getenv("TERM") != "dumb", nil
	default:
		return false, fmt.Errorf("--color is %q; there are auto, always and never", string(m))
	}
}
