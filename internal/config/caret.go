package config

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxShown is how many characters of a line are shown around the place that a caret points to.
const maxShown = 100

// pointAt shows the line of text that byte offset is in, and a caret under the place. It goes behind the message of a
// fault, which then takes three lines:
//
//	pipelines[0].transforms[1].remove[0]: expected a name after "."
//	    spec..template
//	         ^
//
// An offset at or beyond the end points behind the text. Without a text, because it is empty or came from outside the
// file, there is nothing to show.
func pointAt(text string, offset int) string {
	if text == "" {
		return ""
	}
	offset = min(max(offset, 0), len(text))
	start := strings.LastIndexByte(text[:offset], '\n') + 1
	end := len(text)
	if i := strings.IndexByte(text[offset:], '\n'); i >= 0 {
		end = offset + i
	}
	before, after := []rune(text[start:offset]), []rune(text[offset:end])
	head, tail := "", ""
	if cut := len(before) - maxShown*2/3; cut > 0 {
		head, before = "…", before[cut:]
	}
	if room := maxShown - len(before); len(after) > room {
		after, tail = after[:room], "…"
	}
	line := head + plain(before)
	caret := strings.Repeat(" ", utf8.RuneCountInString(line))
	return "\n    " + line + plain(after) + tail + "\n    " + caret + "^"
}

// plain keeps a terminal's columns and its settings: one character for each rune, nothing that it acts on.
func plain(text []rune) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		default:
			return r
		}
	}, string(text))
}
