package expr

import (
	"fmt"
	"slices"
	"strings"

	"cel.dev/cel-go/common/env"
)

// nearest is the end of a message, "; did you mean "labels"?", or "" if no name is near and none begins with the text.
func nearest(text string, names []string) string {
	best, bestDistance := "", 1+max(1, len(text)/3)
	for _, name := range names {
		if d := env.EditDistance(strings.ToLower(text), strings.ToLower(name)); d < bestDistance && d < len(text) {
			best, bestDistance = name, d
		}
	}
	if i := slices.IndexFunc(names, func(name string) bool { return len(text) > 2 && strings.HasPrefix(name, text) }); best == "" && i >= 0 {
		best = names[i]
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}

// didYouMean is nearest, or the names there are.
func didYouMean(text string, names []string) string {
	if hint := nearest(text, names); hint != "" {
		return hint
	}
	return "; there are: " + strings.Join(names, ", ")
}
