package source

import (
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// PipelineSet is a set of a source's pipelines: bit n stands for Options.Pipelines[n].
type PipelineSet uint64

// MaxPipelines is how many pipelines a source can have: each known object has bits for each.
const MaxPipelines = 64

// Has reports whether pipeline n is in the set.
func (s PipelineSet) Has(n int) bool { return s&(1<<n) != 0 }

// views is what the pipelines of a watch have of one known object.
type views struct {
	// due are the pipelines whose snapshot has not reached the object.
	due PipelineSet
	// filtered are the pipelines that do not have the object: their filters did not let its last version pass, or it was
	// never sent to them.
	filtered PipelineSet
	// had are those of filtered that had the object, and were sent no DELETED of it since.
	had PipelineSet
}

// sent returns the views after a version went to the pipelines in to, of which the filters of passed let it pass. Those in announcing were sent a
// DELETED of an object that they had, if they are not in passed.
func (v views) sent(to, passed, announcing PipelineSet) views {
	stopped := to &^ passed
	v.had = v.had&^passed | stopped&^v.filtered&^announcing
	v.filtered = v.filtered&^to | stopped
	return v
}

// snapshotted returns the views after a pipeline's snapshot reached the object.
func (v views) snapshotted(pipeline int) views {
	v.due &^= 1 << pipeline
	return v
}

// restoredViews returns the views of an object from the last commit, whose bits stand for the pipelines that meta lists,
// for the present pipelines. A pipeline that was not there does not have the object.
func restoredViews(object *delta.Known, meta *Meta, pipelines []string) views {
	var v views
	for n, name := range pipelines {
		bit := PipelineSet(1) << n
		then := slices.Index(meta.Pipelines, name)
		if then < 0 || PipelineSet(object.Filtered).Has(then) {
			v.filtered |= bit
		}
		if then >= 0 && PipelineSet(object.Had).Has(then) {
			v.had |= bit
		}
		snapshot := meta.Snapshots[name]
		if then >= 0 && snapshot.Begun && (PipelineSet(object.Due).Has(then) || object.Era < snapshot.Era) {
			v.due |= bit
		}
	}
	return v
}
