package assets

import (
	"flag"
	"regexp"
	"strings"
)

// Selected reports whether the flags -run and -skip of go test select a test, for a TestMain that prepares what takes long only for tests
// that need it. The flags must have been parsed.
func Selected(test string) bool {
	matches := func(name string) (set, matches bool) {
		pattern, subtests, some := strings.Cut(flag.Lookup(name).Value.String(), "/")
		if name == "test.skip" && some && subtests != "" {
			return false, false // it skips subtests
		}
		found, err := regexp.MatchString(pattern, test)
		return pattern != "", err == nil && found
	}
	if set, found := matches("test.run"); set && !found {
		return false
	}
	set, found := matches("test.skip")
	return !set || !found
}
