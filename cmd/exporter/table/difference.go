package table

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeferry/kubeferry/pipeline/shape"
)

const (
	maxFields = 12 // in a line
	maxValue  = 60 // runes of a value
)

// Describe lists the fields that make an object recognizable.
func Describe(object map[string]any) string {
	version, _ := object["apiVersion"].(string)
	group, _, _ := strings.Cut(version, "/")
	custom := strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
	var parts []string
	for path, value := range leaves(object) {
		spec, inSpec := strings.CutPrefix(path, "spec.")
		switch {
		case inSpec && custom && !strings.ContainsAny(spec, ".["),
			slices.Contains([]string{"spec.replicas", "spec.type", "spec.nodeName", "status.phase", "reason", "message", "note"}, path),
			strings.HasSuffix(path, ".image") && inSpec,
			strings.HasPrefix(path, "data."):
			parts = append(parts, short(path)+" "+shown(value))
		}
	}
	slices.Sort(parts)
	return joined(parts)
}

// Difference lists the fields that differ. The resource version always does; counters, times and the annotation of kubectl apply, which
// change with something else, are left out, unless they are all there is.
func Difference(before, after map[string]any) string {
	was, is := leaves(before), leaves(after)
	paths := maps.Clone(was)
	maps.Copy(paths, is)
	var parts, minor []string
	for _, path := range slices.SortedFunc(maps.Keys(paths), statusLast) {
		old, wasThere := was[path]
		current, isThere := is[path]
		text := ""
		switch {
		case old == current && wasThere == isThere, path == "metadata.resourceVersion":
			continue
		case !wasThere:
			text = fmt.Sprintf("+ %s %s", short(path), shown(current))
		case !isThere:
			text = "- " + short(path)
		default:
			old, current = around(old, current)
			text = fmt.Sprintf("%s %s → %s", short(path), shown(old), shown(current))
		}
		if strings.HasSuffix(path, "Time") || strings.HasSuffix(path, "eneration") || strings.HasSuffix(path, "/last-applied-configuration") {
			minor = append(minor, text)
		} else {
			parts = append(parts, text)
		}
	}
	if len(parts) == 0 {
		parts = minor
	}
	return joined(parts)
}

// statusLast sorts paths, those of the status behind what it follows from.
func statusLast(a, b string) int {
	if status := strings.HasPrefix(a, "status."); status != strings.HasPrefix(b, "status.") {
		return map[bool]int{true: 1, false: -1}[status]
	}
	return strings.Compare(a, b)
}

func joined(parts []string) string {
	if more := len(parts) - maxFields; more > 0 {
		parts = append(parts[:maxFields:maxFields], fmt.Sprintf("and %d more", more))
	}
	return strings.Join(parts, ", ")
}

// shown returns a value in a few characters; of a digest it shows the beginning, so that it still differs from another one.
func shown(value string) string {
	if digest, ok := strings.CutPrefix(value, shape.DigestPrefix); ok {
		return "redacted:" + Cut(digest, 8, "")
	}
	if value == "" {
		return `""`
	}
	return Cut(value, maxValue, "…")
}

// around leaves of two long texts where they begin to differ.
func around(old, current string) (oldPart, currentPart string) {
	a, b := []rune(old), []rune(current)
	same := 0
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	const context = 10
	if max(len(a), len(b)) <= maxValue || same <= context || strings.HasPrefix(old, shape.DigestPrefix) {
		return old, current
	}
	return "…" + string(a[same-context:]), "…" + string(b[same-context:])
}

// short leaves of a path what is behind the lists around the last one.
func short(path string) string {
	list := strings.LastIndex(path, "].")
	if list < 0 {
		return path
	}
	opened := strings.LastIndex(path[:list], "[")
	if opened < 0 {
		return path
	}
	return path[strings.LastIndex(path[:opened], ".")+1:]
}

// leaves returns the paths of an object's scalars with their values as text.
func leaves(object map[string]any) map[string]string {
	found := map[string]string{}
	addLeaves(found, "", object)
	return found
}

func addLeaves(found map[string]string, path string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for key, v := range value {
			addLeaves(found, strings.TrimPrefix(path+"."+key, "."), v)
		}
	case []any:
		names := itemNames(value)
		for n, v := range value {
			addLeaves(found, path+"["+names[n]+"]", v)
		}
	default:
		found[path] = fmt.Sprint(value)
	}
}

// itemNames returns the items' names or types, where each has another one, so that an item is compared with itself wherever
// it is in the list; else their places.
func itemNames(items []any) []string {
	for _, key := range []string{"name", "type"} {
		names := make([]string, len(items))
		distinct := map[string]bool{}
		for n, item := range items {
			fields, _ := item.(map[string]any)
			names[n], _ = fields[key].(string)
			distinct[names[n]] = true
		}
		if len(distinct) == len(items) && !distinct[""] {
			return names
		}
	}
	places := make([]string, len(items))
	for n := range items {
		places[n] = strconv.Itoa(n)
	}
	return places
}
