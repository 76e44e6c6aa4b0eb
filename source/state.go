package source

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// state is what of a watch outlives the process.
type state struct {
	Meta
	known *knownSet

	// requested are the pipelines of snapshots on demand that are not pending yet.
	requested PipelineSet

	changed  bool // since the last capture
	captured bool // by the commit in progress
	// lacking is what the pipelines lack of their snapshots, as of the last capture.
	lacking map[string]Lacking
}

// Meta is what is kept of a watch beside its known set, as JSON.
type Meta struct {
	Source        string           `json:"source"`
	Resource      string           `json:"resource"`
	Namespace     string           `json:"namespace,omitempty"`
	LabelSelector string           `json:"labelSelector,omitempty"`
	FieldSelector string           `json:"fieldSelector,omitempty"`
	Namespaces    delta.Namespaces `json:"namespaces"`
	// Position is the resource version of what was sent last; empty until a state was read to its end.
	Position string `json:"position,omitempty"`
	// Sent is the sequence of the position, as it was when it was reached.
	Sent uint64 `json:"sent,omitempty"`
	// Resume is the resource version at which a watch goes on: the position, or a version before it, as long as more may follow that has
	// the version of the position.
	Resume string `json:"resume,omitempty"`
	// Raise is set until the offset is raised, which has to be before anything is sent.
	Raise *raise `json:"raise,omitempty"`
	// Seen is the highest resource version that a list or an event had, as a number. The API server's is lower only if its history has gone back.
	Seen uint64 `json:"seen,omitempty"`
	// Restored counts how often it has.
	Restored int `json:"restored,omitempty"`
	// Begun is set while there is no position, and the first state is being sent.
	Begun bool `json:"begun,omitempty"`
	// Gap is the reason for which the state has to be read behind a gap record; empty once it was read to its end. Meanwhile the known set is
	// ahead of the position: no watch may resume from there.
	Gap delta.GapReason `json:"gap,omitempty"`
	// Reselected is set until then if the label selector or the field selector was edited: what the state lacks was deleted, or is not
	// selected any more.
	Reselected bool `json:"reselected,omitempty"`
	// Doubt has each pipeline that may have been sent what the known set lacks, by a killed run or another replica, with the resource version
	// that the API server had at the next start; empty until that is known. It ends when the position has passed that version, or with a
	// complete snapshot of the pipeline.
	Doubt map[string]string `json:"doubt,omitempty"`
	// Gone is set while the deletions of a resource that is gone are being sent.
	Gone bool `json:"gone,omitempty"`
	// Absent is set while the resource does not exist, and nothing is known of it. It is also set once the watch ends.
	Absent bool `json:"absent,omitempty"`
	// Defined is set if a CustomResourceDefinition defined the resource when it was found last.
	Defined      bool   `json:"defined,omitempty"`
	APIVersion   string `json:"apiVersion,omitempty"`
	Kind         string `json:"kind,omitempty"`
	RetainPolicy string `json:"retainPolicy,omitempty"`
	// Pipelines are those that the bits of known objects stand for, and Filters those of each, as [Options.Filters] has them.
	Pipelines []string `json:"pipelines,omitempty"`
	Filters   []string `json:"filters,omitempty"`
	// Era counts the snapshots that began.
	Era uint32 `json:"era,omitempty"`
	// Snapshots are those that are not complete, by pipeline.
	Snapshots map[string]PendingSnapshot `json:"snapshots,omitempty"`
	// Named has, by pipeline, the sequence of the last snapshot.
	Named map[string]uint64 `json:"named,omitempty"`
}

// read reports whether the state was read.
func (s *state) read() bool { return s.Position != "" && s.Gap == "" }

// readAnew makes the state due to be read behind a gap record, and begins a snapshot for some pipelines. It is called inside the handler's
// calls.
func (s *state) readAnew(reason delta.GapReason, snapshots PipelineSet) {
	if s.Position != "" || s.Begun {
		s.Gap = reason
	}
	for n, pipeline := range s.Pipelines {
		if snapshots.Has(n) {
			s.beginAnew(pipeline, s.Snapshots[pipeline])
		}
	}
	s.changed = true
}

// doubtful are the pipelines in doubt.
func (s *state) doubtful() (in PipelineSet) {
	for n, pipeline := range s.Pipelines {
		if _, ok := s.Doubt[pipeline]; ok {
			in |= 1 << n
		}
	}
	return in
}

// pending are the pipelines with a snapshot that is not complete.
func (s *state) pending() (in PipelineSet) {
	for n, pipeline := range s.Pipelines {
		if _, ok := s.Snapshots[pipeline]; ok {
			in |= 1 << n
		}
	}
	return in
}

// doubtUntil puts pipelines in doubt until the position has passed a resource version, empty if that is not known yet.
func (s *state) doubtUntil(resourceVersion string, to PipelineSet) {
	if s.Doubt == nil {
		s.Doubt = map[string]string{}
	}
	for n, pipeline := range s.Pipelines {
		if to.Has(n) {
			s.Doubt[pipeline], s.changed = resourceVersion, true
		}
	}
}

// endDoubts ends the doubts that the position has passed. Of versions that are no numbers that is not known: a complete snapshot ends those.
func (s *state) endDoubts() {
	position := versionNumber(s.Position)
	maps.DeleteFunc(s.Doubt, func(_ string, until string) bool {
		version := versionNumber(until)
		return version > 0 && position > version
	})
}

// reset forgets everything but the known set, and how far the API server was.
func (s *state) reset() {
	s.Position, s.Sent, s.Resume, s.Gone, s.Begun, s.Gap, s.Reselected = "", 0, "", false, false, "", false
	for pipeline, snapshot := range s.Snapshots {
		s.keepNaming(pipeline, snapshot.Sequence)
	}
	s.Doubt, s.Snapshots = nil, nil
	s.changed = true
}

// sameSelection reports whether two watches of one source, resource and namespace select the same objects.
func (m *Meta) sameSelection(other *Meta) bool {
	return m.sameSelectors(other) && slices.Equal(m.Namespaces.Include, other.Namespaces.Include) &&
		slices.Equal(m.Namespaces.Exclude, other.Namespaces.Exclude)
}

func (m *Meta) sameSelectors(other *Meta) bool {
	return m.LabelSelector == other.LabelSelector && m.FieldSelector == other.FieldSelector
}

// filtersOf identifies the filters of a pipeline, as [Options.Filters] does.
func (m *Meta) filtersOf(pipeline string) string {
	if n := slices.Index(m.Pipelines, pipeline); n >= 0 && m.Filters != nil {
		return m.Filters[n]
	}
	return ""
}

// setSnapshot, countSnapshot and dropSnapshot are called inside the handler's calls.
func (s *state) setSnapshot(pipeline string, snapshot PendingSnapshot) {
	if s.Snapshots == nil {
		s.Snapshots = map[string]PendingSnapshot{}
	}
	s.Snapshots[pipeline], s.changed = snapshot, true
}

func (s *state) countSnapshot(passed PipelineSet) {
	for n, pipeline := range s.Pipelines {
		if snapshot, pending := s.Snapshots[pipeline]; pending && passed.Has(n) {
			snapshot.Count++
			s.Snapshots[pipeline] = snapshot
		}
	}
}

func (s *state) dropSnapshot(pipeline string) {
	delete(s.Snapshots, pipeline)
	s.changed = true
}

func (s *state) setKind(kind schema.GroupVersionKind) {
	s.APIVersion, s.Kind = kind.ToAPIVersionAndKind()
}

func (s *state) kind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(s.APIVersion, s.Kind)
}

func (w *watcher) known() *knownSet { return w.state.known }
