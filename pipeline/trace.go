package pipeline

import "github.com/kubeferry/kubeferry/internal/fieldpath"

// trace records what becomes of one change on its way in, for [Pipeline.Explain]. A nil trace records nothing.
type trace struct {
	evaluated []int            // the indexes of the filters that were evaluated, in order
	versions  []map[string]any // the object before the first transform, and after each one that succeeded
	hide      []Transform      // the pipeline's: what one redacts is hidden in the versions before
}

// evaluate records that a filter is evaluated.
func (t *trace) evaluate(index int) {
	if t != nil {
		t.evaluated = append(t.evaluated, index)
	}
}

// version records the object between two transforms.
func (t *trace) version(content map[string]any) {
	if t != nil {
		t.versions = append(t.versions, withoutRedacted(t.hide[len(t.versions):], content))
	}
}

// hiddenText stands in an explanation, which people paste into tickets, for a value before it becomes a digest.
const hiddenText = "(hidden: a redact is for it)"

// withoutRedacted returns a copy of a decoded object, with a mark in the place of what the transforms would redact.
// Copies of such a value in other places stay.
func withoutRedacted(transforms []Transform, object map[string]any) map[string]any {
	object = fieldpath.Clone(object).(map[string]any)
	for _, transform := range transforms {
		redact, ok := transform.(RedactTransform)
		if !ok {
			continue
		}
		for _, path := range append(redact.Paths[:len(redact.Paths):len(redact.Paths)], lastAppliedPath()) {
			_ = path.Replace(object, func(value any) (any, error) { // it cannot fail
				if text, ok := value.(string); ok && isDigest(text) {
					return text, nil
				}
				return hiddenText, nil
			})
		}
	}
	return object
}
