package main

import (
	"fmt"
	"io"
	"os"
)

// isTerminal reports whether a stream is a terminal.
func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// useColor reports whether to write colours to w: with auto at a terminal, unless the environment forbids it
// (no-color.org).
func useColor(mode string, w io.Writer) (bool, error) {
	switch mode {
	case "always":
		return true, nil
	case "never":
		return false, nil
	case "auto":
		return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb", nil
	default:
		return false, fmt.Errorf("--color is %q; there are auto, always and never", mode)
	}
}
