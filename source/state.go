package source

import (
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
	// incomplete are the pipelines of whose snapshots a record went to the dead letter, as of the last capture.
	incomplete PipelineSet
}

// Meta is what is kept of a watch beside its known set, as JSON.
type Meta struct {
	Source        string           `json:"source"`
	Resource      string           `json:"resource"`
	Namespace     string           `json:"namespace,omitempty"`
	LabelSelector string           `json:"labelSelector,omitempty"`
	FieldSelector string           `json:"fieldSelector,omitempty"`
	Namespaces    delta.Namespaces `json:"namespaces"`
	// Position is the resource version of what was sent last.
	Position string `json:"position,omitempty"`
	// Resume is the resource version at which a watch goes on: the position, or a version before it, as long as more may follow that has
	// the version of the position.
	Resume string `json:"resume,omitempty"`
	// Complete is set once a state was read to its end: from then on an object that a reading brings is a change.
	Complete bool `json:"complete"`
	// Begun is set while there is no position, and the first state is being sent. After a kill it is unknown how much of it
	// was.
	Begun bool `json:"begun,omitempty"`
	// Paused is set with Begun from the start behind a run that ended well until the first state is read again: a run that is killed
	// meanwhile has sent nothing of it.
	Paused bool `json:"paused,omitempty"`
	// Partial is set after the selection was edited, until a state was read to its end: the known set may lack objects that
	// are selected now, and hold some that are not, which are looked up.
	Partial bool `json:"partial,omitempty"`
	// Apart is set with Partial if the known set holds objects of a namespace that had a watch of its own, not as of the position: then it
	// is where that watch was, or the lowest of several. A watch that inherits these objects has a gap from there, unless it is lower itself.
	Apart string `json:"apart,omitempty"`
	// Edited is the highest sequence of what was sent because the configuration was edited, and of changes below it that followed; or one
	// behind the deletions of what may come back as it was.
	Edited uint64 `json:"edited,omitempty"`
	// Former has, for each resource that has no watch any more, the highest sequence that was sent of it: it may come back.
	Former map[string]uint64 `json:"former,omitempty"`
	// Refused is why the server refused the position, from the gap until the state that closes it is complete. Meanwhile
	// the known set is ahead of the position: no watch may resume from there.
	Refused string `json:"refused,omitempty"`
	// Reading is the resource version of the state that was read last, or one just before it: behind a gap, after an edit, or at first. Its
	// objects are sent ahead of the position. After the resource was gone it is the newest version that was read before.
	Reading uint64 `json:"readingAt,omitempty"`
	// Gone is set while the deletions of a resource that is gone are being sent: one more than the highest version that was known.
	Gone uint64 `json:"goneAt,omitempty"`
	// Absent is set where nothing is known of a resource that does not exist, until a state of it is read.
	Absent bool `json:"absent"`
	// Defined is set if a CustomResourceDefinition defined the resource when it was found last.
	Defined bool `json:"defined,omitempty"`
	// Unclean is set if a run ended without a last commit, and not all of the history has been read that it may have
	// sent beyond it.
	Unclean bool `json:"unclean,omitempty"`
	// Lost is set while it is not known what another leader, whose state is lost, sent of the watch.
	Lost bool `json:"lost,omitempty"`
	// Uncertain is why a gap record is due though history goes on: pipelines may have objects that nothing is known of.
	Uncertain string `json:"uncertain,omitempty"`
	// Repetition is in the ids for transports of the changes that an unclean watch repeats after an edit, or in a snapshot: their
	// first sending may have been under other filters, or before the first mark.
	Repetition string `json:"repetition,omitempty"`
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	// The names of the members that differ from those of the fields are the format of the files in use.
	RetainPolicy string `json:"kept,omitempty"`
	// Pipelines are those that the bits of known objects stand for.
	Pipelines []string `json:"takers,omitempty"`
	// FormerPipelines are those that took the resource before, and may come back.
	FormerPipelines []string `json:"formerTakers,omitempty"`
	// Filters are those of each pipeline, as [Options.Filters] has them; older files have none.
	Filters []string `json:"filters,omitempty"`
	// Snapshots are those that are not complete, by pipeline.
	Snapshots map[string]PendingSnapshot `json:"snapshots,omitempty"`
	// Served is in older files only, which have no bits for it: the pipelines that had their whole snapshot.
	Served []string `json:"served,omitempty"`
}

// read reports whether the state was read. Complete is set without a position where a source without snapshots waits for its resource.
func (s *state) read() bool { return s.Complete && s.Position != "" }

// guessAbsent sets Absent, which older files do not have. Where the deletions of a resource that is gone were sent, Edited is behind them.
func (m *Meta) guessAbsent() {
	m.Absent = m.Position == "" && !m.Begun && m.Gone == 0 && m.Reading > 0 && m.Edited > m.Reading
}

// reset forgets everything but the known set.
func (s *state) reset() {
	s.Position, s.Resume, s.Complete, s.Gone, s.Reading, s.Absent, s.Paused = "", "", false, 0, 0, false, false
	s.Begun, s.Partial, s.Apart, s.Refused, s.Unclean, s.Lost, s.Uncertain, s.Repetition = false, false, "", "", false, false, "", ""
	s.Snapshots = nil
	s.changed = true
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
