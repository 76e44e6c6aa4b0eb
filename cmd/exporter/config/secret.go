package config

import (
	"regexp"
	"strconv"
	"strings"
)

// secret is a text from outside the file, and how the file refers to it. Messages show the reference only.
type secret struct{ text, reference string }

var quotedText = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|'[^']*'`)

// scrub puts references back where a message repeats a secret: a whole one in quotes always, and anywhere else unless
// it is so short that it may be a part of any word. A mere part of a secret, in quotes, is left out.
func scrub(message string, secrets []secret) string {
	var pairs []string
	for _, s := range secrets {
		quoted := strconv.Quote(s.text)
		if s.text != "" {
			pairs = append(pairs, quoted, strconv.Quote(s.reference), "'"+s.text+"'", "'"+s.reference+"'")
		}
		if len(s.text) >= 4 {
			pairs = append(pairs, s.text, s.reference, quoted[1:len(quoted)-1], s.reference)
		}
	}
	message = strings.NewReplacer(pairs...).Replace(message)
	return quotedText.ReplaceAllStringFunc(message, func(quoted string) string {
		part := quoted[1 : len(quoted)-1]
		for _, s := range secrets {
			if part != "" && (strings.Contains(s.text, part) || strings.Contains(strconv.Quote(s.text), part)) {
				return `"…"`
			}
		}
		return quoted
	})
}
