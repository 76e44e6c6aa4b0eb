package config

import (
	"fmt"
	"strings"
)

// suggest returns the name out of names that text was probably meant to be, or "".
func suggest(text string, names []string) string {
	best, bestDistance := "", 1+max(1, len(text)/3)
	for _, name := range names {
		d := distance(strings.ToLower(text), strings.ToLower(name))
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

// distance is the Levenshtein distance in bytes, a swap of neighbours counting as one.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	var before, above []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, above, row = above, row, make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
