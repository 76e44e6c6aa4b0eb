package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Diff says what a MODIFIED carries of the previous version.
type Diff string

// The kinds of a difference. Both versions are compared as the pipeline sends them, redacted and transformed.
const (
	DiffNone Diff = "none"
	// DiffOldObject sends the previous version.
	DiffOldObject Diff = "oldObject"
	// DiffJSONPatch sends a JSON Patch (RFC 6902) that makes the new version of the old.
	DiffJSONPatch Diff = "jsonPatch"
	// DiffMergePatch sends a JSON Merge Patch (RFC 7386). A member that is null looks like one that is absent,
	// so both count as absent, as they do for the API server. Versions of more than maxCompared objects are not compared: no
	// merge patch replaces a whole document, so that the previous version counts as unknown.
	DiffMergePatch Diff = "mergePatch"
)

func (d Diff) wanted() bool { return d != "" && d != DiffNone }

// between compares two versions; old is nil if it is not known.
func (d Diff) between(old, object *delta.Object) (*delta.Difference, error) {
	if old == nil || d == DiffMergePatch && haveMany(old.JSON(), object.JSON()) {
		return &delta.Difference{}, nil
	}
	difference := &delta.Difference{Known: true, OldResourceVersion: old.ResourceVersion()}
	var err error
	switch d {
	case DiffJSONPatch:
		difference.Patch, err = jsonPatch(old.JSON(), object.JSON())
	case DiffMergePatch:
		difference.Patch, err = mergePatch(old.JSON(), object.JSON())
	default:
		difference.OldObject = old.JSON()
	}
	if err != nil {
		return nil, fmt.Errorf("compare with the previous version: %w", err)
	}
	return difference, nil
}

// maxCompared is how many JSON objects with members, nested ones included, two versions may have together. Decoded, each takes 350 bytes
// or more, and five bytes make one in a request: imagePullSecrets of 290,000 items took 107 MB for each version.
const maxCompared = 100_000

// haveMany reports whether two versions have more than maxCompared.
func haveMany(old, object []byte) bool {
	member := []byte(`{"`)
	return bytes.Count(old, member)+bytes.Count(object, member) > maxCompared
}

func mergePatch(old, object []byte) ([]byte, error) {
	from, to, err := decodeBoth[map[string]any](old, object)
	if err != nil {
		return nil, err
	}
	return json.Marshal(mergeObjects(from, to))
}

// decodeBoth decodes two versions. It keeps numbers as they are written: as float64, two large ones that differ could
// look the same.
func decodeBoth[T any](old, object []byte) (from, to T, err error) {
	before, after := json.NewDecoder(bytes.NewReader(old)), json.NewDecoder(bytes.NewReader(object))
	before.UseNumber()
	after.UseNumber()
	if err = before.Decode(&from); err == nil {
		err = after.Decode(&to)
	}
	return from, to, err
}

// mergeObjects is RFC 7386 backwards: applied to from, what it returns makes to.
func mergeObjects(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for name, old := range from {
		if old != nil && to[name] == nil {
			patch[name] = nil
		}
	}
	for name, value := range to {
		if value == nil {
			continue
		}
		object, isObject := value.(map[string]any)
		if !isObject {
			if !reflect.DeepEqual(from[name], value) {
				patch[name] = value
			}
			continue
		}
		// What is no object yet is taken for an empty one, so that nulls inside it are left out here too.
		before, _ := from[name].(map[string]any)
		change := mergeObjects(before, object)
		if _, wasObject := from[name].(map[string]any); len(change) > 0 || !wasObject {
			patch[name] = change
		}
	}
	return patch
}
