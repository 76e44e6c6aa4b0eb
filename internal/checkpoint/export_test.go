package checkpoint

import (
	"cmp"
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Forget puts the sizes in memory back, as after a commit that failed when all of it was on disk.
func Forget(s *Store, sizes map[string]delta.LogSize) { s.sizes = sizes }

// ReadLog returns all entries of a pipeline's log, in the order of their numbers.
func (s *Store) ReadLog(pipeline string) (entries []delta.Entry, err error) {
	flows, err := s.Flows(pipeline)
	for _, flow := range flows {
		if err != nil {
			break
		}
		var of []delta.Entry
		of, _, err = s.ReadFlow(pipeline, flow, 0, 1<<62)
		entries = append(entries, of...)
	}
	slices.SortFunc(entries, func(a, b delta.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	return entries, err
}
