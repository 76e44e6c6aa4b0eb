package checkpoint_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// keyInFlow returns the key of a number in one of three flows.
func keyInFlow(seq uint64) delta.LogKey { return delta.LogKey{Flow: fmt.Sprint("f", seq%3), Seq: seq} }

// inFlow puts an entry into one of three flows.
func inFlow(e delta.Entry) delta.Entry {
	e.LogKey = keyInFlow(e.Seq)
	return e
}

// A flow is read in order and without the entries of others, whatever their names have in common; attempts are written without the entry,
// and go with it; a commit that is done again begins behind the last good one in all flows.
func TestFlows(t *testing.T) {
	s, err := checkpoint.Open(t.TempDir(), func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	commit := func(change delta.LogChange) {
		t.Helper()
		change.Pipeline = "p"
		if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
			t.Fatal(err)
		}
	}
	read := func(flow string, want ...uint64) (entries []delta.Entry) {
		t.Helper()
		entries, more, err := s.ReadFlow("p", flow, 0, 1<<30)
		var got []uint64
		for _, e := range entries {
			got = append(got, e.Seq)
			if e.Flow != flow {
				t.Errorf("entry %d of %q is in %q", e.Seq, flow, e.Flow)
			}
		}
		if err != nil || more || !slices.Equal(got, want) {
			t.Errorf("flow %q: got %d, more %v, %v, want %d", flow, got, more, err, want)
		}
		return entries
	}
	names := []string{"", "a", "a-b", "a.b", "ab", "/notice"}
	var first delta.LogChange
	for seq := range uint64(600) { // the bytes of their numbers differ in two places
		e := entry(t, seq)
		e.Flow, e.Attempts = names[seq%6], 0
		first.Append = append(first.Append, e)
	}
	commit(first)
	flows, err := s.Flows("p")
	if err != nil || !slices.Equal(flows, []string{"", "/notice", "a", "a-b", "a.b", "ab"}) {
		t.Errorf("got %q, %v", flows, err)
	}
	size := s.Logs()["p"]
	commit(delta.LogChange{Attempts: []delta.Attempts{{Seq: 1, Attempts: 7, Failed: time.Unix(3, 4)}, {Seq: 598, Attempts: 2, Failed: time.Unix(5, 6)}}})
	if now := s.Logs()["p"]; now.Entries != size.Entries || now.Bytes > size.Bytes+50 {
		t.Errorf("two attempts took %d bytes", now.Bytes-size.Bytes)
	}
	if e := read("a", stepsFrom(1, 600)...)[0]; e.Attempts != 7 || !e.Failed.Equal(time.Unix(3, 4)) {
		t.Errorf("got %d attempts since %v", e.Attempts, e.Failed)
	}
	commit(delta.LogChange{Redo: true, From: 300, Append: first.Append[599:]})
	read("", stepsFrom(0, 300)...)
	read("a-b", stepsFrom(2, 300)...)
	read("/notice", append(stepsFrom(5, 300), 599)...)
	read("none")
	var rest []delta.LogKey
	for _, e := range append(first.Append[:300], first.Append[599]) {
		rest = append(rest, e.LogKey)
	}
	commit(delta.LogChange{Remove: rest})
	if left, err := s.Flows("p"); len(left) > 0 || err != nil || s.Logs()["p"] != (delta.LogSize{Next: 600}) {
		t.Errorf("%q are left, %+v, %v", left, s.Logs()["p"], errors.Join(err))
	}
}

// stepsFrom returns every sixth number.
func stepsFrom(from, to uint64) (numbers []uint64) {
	for ; from < to; from += 6 {
		numbers = append(numbers, from)
	}
	return numbers
}
