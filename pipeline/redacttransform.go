package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// RedactTransform puts digests in the place of what its paths match: lists and maps as a whole. The last-applied
// annotation becomes one too, whatever the paths are: it is a copy of the object that kubectl made, in which the values
// may stand in other places, if another transform moved them or a list has got further items since.
type RedactTransform struct {
	Redactor *Redactor
	Paths    []fieldpath.Path
}

// Apply implements [Transform].
func (t RedactTransform) Apply(_ context.Context, object map[string]any, _ TransformInput) error {
	for _, path := range t.Paths {
		if err := path.Replace(object, t.Redactor.any); err != nil {
			return fmt.Errorf("redact %s: %w", path, err)
		}
	}
	if err := lastAppliedPath().Replace(object, t.Redactor.any); err != nil {
		return fmt.Errorf("redact %s: %w", lastAppliedPath(), err)
	}
	return nil
}

func lastAppliedPath() fieldpath.Path {
	return fieldpath.Of("metadata", "annotations", delta.LastApplied)
}

// any is the digest of a decoded value: of a string's text, of anything else's JSON with sorted keys. So equal values
// have equal digests, and a text has the one that it has in a Secret. What is a digest already stays as it is.
func (r *Redactor) any(value any) (any, error) {
	if text, ok := value.(string); ok {
		return r.text(text), nil
	}
	raw, err := delta.EncodeJSON(value)
	if err != nil {
		return nil, errors.New("the value cannot be encoded") // encoding/json may quote it
	}
	return r.digest(raw), nil
}
