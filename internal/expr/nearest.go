package expr

import (
	"fmt"
	"strings"

	"cel.dev/cel-go/common/env"
)

// MetadataFields are the fields of metadata, which are the same for all kinds: those of ObjectMeta
// (k8s.io/apimachinery/pkg/apis/meta/v1/types.go).
func MetadataFields() []string {
	return []string{
		"annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers", "generateName",
		"generation", "labels", "managedFields", "name", "namespace", "ownerReferences", "resourceVersion", "selfLink", "uid",
	}
}

// Nearest returns the name that text was probably meant to be, or "" if no name is near.
func Nearest(text string, names []string) string {
	best, bestDistance := "", 1+max(1, len(text)/3)
	for _, name := range names {
		if d := env.EditDistance(strings.ToLower(text), strings.ToLower(name)); d < bestDistance && d < len(text) {
			best, bestDistance = name, d
		}
	}
	return best
}

// didYouMean is the end of a message, `; did you mean "labels"?`, or "" if no name is near.
func didYouMean(text string, names []string) string {
	if name := Nearest(text, names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}
