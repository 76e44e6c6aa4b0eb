package config

import (
	"fmt"
	"strings"

	"cel.dev/cel-go/common/env"
)

// suggest returns the name out of names that text was probably meant to be, or "".
func suggest(text string, names []string) string {
	best, bestDistance := "", 1+max(1, len(text)/3)
	for _, name := range names {
		d := env.EditDistance(strings.ToLower(text), strings.ToLower(name))
		if d < bestDistance && d < len(text) {
			best, bestDistance = name, d
		}
	}
	return best
}

// didYouMean is the end of a message: "; did you mean "sinks"?", or "; there are: a, b" when nothing is near.
func didYouMean(text string, names []string) string {
	if name := suggest(text, names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	if len(names) == 0 {
		return ""
	}
	return "; there are: " + strings.Join(names, ", ")
}
