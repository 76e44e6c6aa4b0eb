package source

import "slices"

// Audience says which takers a delta concerns.
type Audience struct {
	// Only lists those it is for; nil means all of them, and empty none.
	Only []string
	// Before lists those whose filters the version before passed; nil means all of them.
	Before []string
}

// maxSets bounds the sets of takers that a watch tells apart.
const maxSets = 1<<16 - 1

// takerSets numbers sets of takers, so that a known object needs two bytes for its own. Number 0 is everybody.
type takerSets [][]string

// number of a set; names must be in the order of the takers.
func (s *takerSets) number(names, takers []string) uint16 {
	if names == nil || len(names) == len(takers) {
		return 0
	}
	for n, set := range *s {
		if slices.Equal(set, names) {
			return uint16(n + 1) //nolint:gosec // bounded by maxSets
		}
	}
	if len(*s) == maxSets {
		return 0 // rather told once too often
	}
	*s = append(*s, append([]string{}, names...))
	return uint16(len(*s)) //nolint:gosec // bounded by maxSets
}

// names of a set; nil is everybody.
func (s takerSets) names(number uint16) []string {
	if number == 0 || int(number) > len(s) {
		return nil
	}
	return s[number-1]
}

// merge returns who passed when only some takers were asked: for the others it is as before.
func merge(takers []string, audience Audience, passed []string) []string {
	if audience.Only == nil {
		return passed
	}
	merged := make([]string, 0, len(takers))
	for _, name := range takers {
		asked, from := slices.Contains(audience.Only, name), passed
		if !asked {
			from = audience.Before
		}
		if from == nil || slices.Contains(from, name) {
			merged = append(merged, name)
		}
	}
	return merged
}
