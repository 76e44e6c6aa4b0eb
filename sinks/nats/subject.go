package nats

import (
	"slices"
	"strings"
)

// maxSubject leaves room in the control line (max_control_line, 4,096 bytes, over which a server closes the connection)
// for the reply subject and the sizes.
const maxSubject = 2048

// tokenByte reports whether the value of a placeholder may hold b (ADR-6, naming rules).
func tokenByte(b byte) bool {
	return b > ' ' && b < 0x7f && b != '.' && b != '*' && b != '>' && b != '$'
}

// literalRune reports whether a token may hold r where the user wrote it.
func literalRune(r rune) bool {
	return r > ' ' && r < 0x7f && r != '*' && r != '>' && r != '.'
}

// literal reports whether text is a subject without wildcards.
func literal(text string) bool {
	return !slices.Contains(strings.Split(text, "."), "") &&
		!strings.ContainsFunc(text, func(r rune) bool { return r != '.' && !literalRune(r) })
}

// pattern returns the subject filter that takes all subjects of the template: values never hold a dot, so
// that the number of tokens stays.
func pattern(template string) string {
	tokens := strings.Split(template, ".")
	for i, token := range tokens {
		if strings.Contains(token, "{") {
			tokens[i] = "*"
		}
	}
	return strings.Join(tokens, ".")
}

// covered reports whether one of the filters takes all subjects of the template.
func covered(filters []string, template string) bool {
	return slices.ContainsFunc(filters, func(filter string) bool { return covers(filter, pattern(template)) })
}

// covers reports whether filter takes every subject of a pattern: then it takes one with a token that no filter names.
func covers(filter, pattern string) bool {
	return overlaps(filter, strings.ReplaceAll(pattern, "*", " "))
}

// overlaps reports whether some subject is taken by both filters.
func overlaps(a, b string) bool {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(x), len(y)) {
		switch {
		case x[i] == ">" || y[i] == ">":
			return true
		case x[i] != y[i] && x[i] != "*" && y[i] != "*":
			return false
		}
	}
	return len(x) == len(y)
}
