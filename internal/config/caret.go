package config

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

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
	rest, _, _ := strings.Cut(text[offset:], "\n")
	before := plain(text[start:offset])
	caret := strings.Repeat(" ", utf8.RuneCountInString(before)) + "^"
	return "\n    " + before + plain(rest) + "\n    " + caret
}

// plain keeps a terminal's columns and its settings: one character for each rune, nothing that it acts on.
func plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return '·'
		default:
			return r
		}
	}, text)
}
