package config

import "strings"

// planned names what users may expect, because the design describes it, and this version does not have. The key is a
// path without indices, or such a path and a value.
func planned(path, value string) (message string, ok bool) {
	pattern := withoutIndices(path)
	if value != "" {
		pattern += "=" + value
	}
	message, ok = plannedMessages()[pattern]
	return "not supported yet: " + message, ok
}

func plannedMessages() map[string]string {
	const (
		remove  = "; remove the key"
		looking = "this version filters by types, namespaces and expr only"
		whole   = "this version sends objects whole, but for managedFields and the data of Secrets"
	)
	return map[string]string{
		"pipelines[].filters[].changed": looking + remove,
		"pipelines[].onLeave":           "this version announces no object that merely stops passing the filters" + remove,
		"pipelines[].transforms":        whole + remove,
		"pipelines[].diff":              "this version sends no previous objects" + remove,
	}
}

// withoutIndices turns pipelines[1].sink into pipelines[].sink.
func withoutIndices(path string) string {
	var b strings.Builder
	inside := false
	for i := range len(path) {
		switch path[i] {
		case '[':
			inside = true
			b.WriteByte('[')
		case ']':
			inside = false
		}
		if !inside {
			b.WriteByte(path[i])
		}
	}
	return b.String()
}
