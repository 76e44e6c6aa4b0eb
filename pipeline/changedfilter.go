package pipeline

import (
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// ChangedFilter passes a MODIFIED only if one of its paths differs from the version before, and everything else. A
// change whose version before is not known passes.
type ChangedFilter []fieldpath.Path

// Pass implements [Filter]. It reads the JSON of both versions, and decodes neither.
func (f ChangedFilter) Pass(c *Change) (bool, error) {
	if c.observed.Type != delta.Modified || c.observed.Old == nil {
		return true, nil
	}
	// As the pipeline may see them: the version before may have been kept redacted, or without managedFields.
	if c.prepare(); c.spoiled != nil {
		return false, c.spoiled
	}
	if c.prepared.Old == nil {
		return true, nil
	}
	differ, err := fieldpath.NewSet(f...).DifferJSON(c.prepared.Old.JSON(), c.prepared.Object.JSON())
	return differ || err != nil, nil // what cannot be compared, as a number beyond float64, may differ
}

// OfObject implements [Filter].
func (ChangedFilter) OfObject() bool { return false }

// NeedsOld reports that the filter reads the version before.
func (ChangedFilter) NeedsOld() bool { return true }
