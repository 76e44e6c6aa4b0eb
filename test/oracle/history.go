package oracle

import (
	"fmt"
	"strconv"
)

// state is one object at one resource version.
type state struct {
	namespace, name, uid string
	version              string
	rank                 uint64 // version as a number: comparable since Kubernetes 1.35 (KEP-5504)
}

type key struct{ namespace, name string }

func (s state) key() key { return key{s.namespace, s.name} }

// change is one change of one object, as a watch reported it or, in a hole, as two lists differ.
type change struct {
	state
	typ string
	net bool // worked out from lists; of a DELETED the version is only an upper bound
}

// span is the history after from up to and including to.
type span struct{ from, to uint64 }

func (s span) contains(rank uint64) bool { return rank > s.from && rank <= s.to }

// history is what one watch has recorded. The oracle's mutex guards it.
type history struct {
	from     uint64 // the resource version of the snapshot
	snapshot []state
	changes  []change
	holes    []span
	current  map[key]state
	last     string // the resource version to watch on from
}

func (h *history) begin(states map[key]state, version string) error {
	rank, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return err
	}
	h.from, h.last, h.current = rank, version, states
	for _, s := range states {
		h.snapshot = append(h.snapshot, s)
	}
	return nil
}

func (h *history) add(c change) {
	h.changes = append(h.changes, c)
	h.last = c.version
	if c.typ == Deleted {
		delete(h.current, c.key())
	} else {
		h.current[c.key()] = c.state
	}
}

// mend records the difference between what was known and a fresh list, after history was refused.
func (h *history) mend(fresh map[key]state, version string) error {
	from, err := strconv.ParseUint(h.last, 10, 64)
	if err != nil {
		return err
	}
	to, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return err
	}
	h.holes = append(h.holes, span{from, to})
	for k, old := range h.current {
		if now, ok := fresh[k]; !ok || now.uid != old.uid {
			gone := old
			gone.version, gone.rank = version, to
			h.changes = append(h.changes, change{state: gone, typ: Deleted, net: true})
		}
	}
	for k, now := range fresh {
		old, ok := h.current[k]
		switch {
		case !ok || old.uid != now.uid:
			h.changes = append(h.changes, change{state: now, typ: Added, net: true})
		case old.version != now.version:
			h.changes = append(h.changes, change{state: now, typ: Modified, net: true})
		}
	}
	h.current, h.last = fresh, version
	return nil
}

// differs is an error if the recorded changes do not lead to exactly these states.
func (h *history) differs(states map[key]state) error {
	for k, want := range states {
		if got := h.current[k]; got.uid != want.uid || got.version != want.version {
			return fmt.Errorf("%s/%s is at version %q, recorded is %q", k.namespace, k.name, want.version, got.version)
		}
	}
	if len(h.current) != len(states) {
		return fmt.Errorf("%d objects exist, recorded are %d", len(states), len(h.current))
	}
	return nil
}
