package config

import (
	"regexp"
	"strconv"
	"strings"
)

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]*$`)

// join is the path of a key: a.b, or a["b.c"] where the key is not a plain word.
func join(path, key string) string {
	if !plainKey.MatchString(key) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" || key == "" {
		return path + key
	}
	return path + "." + key
}

// index is the path of an item.
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// parent is the path without its last step.
func parent(path string) string {
	return path[:max(0, strings.LastIndexAny(path, ".["))]
}

// lastStep is what parent leaves out.
func lastStep(path string) string { return path[len(parent(path)):] }

// within reports whether path is outer or lies inside it.
func within(path, outer string) bool {
	rest, ok := strings.CutPrefix(path, outer)
	return ok && (rest == "" || outer == "" || rest[0] == '.' || rest[0] == '[')
}
