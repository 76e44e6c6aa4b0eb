package checkpoint_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// book is a participant with a log: numbers that live until they are settled.
type book struct {
	next, written, capturing uint64
	live                     map[uint64]bool
	removable, removing      []delta.LogKey // settled, and written before
	redo                     bool
}

func (b *book) Capture(c *checkpoint.Commit) {
	change := delta.LogChange{Pipeline: "p", Remove: b.removable, Redo: b.redo, From: b.written}
	for _, seq := range slices.Sorted(maps.Keys(b.live)) {
		if seq >= b.written {
			change.Append = append(change.Append, inFlow(gap(seq)))
		}
	}
	b.removing, b.removable, b.capturing = b.removable, nil, b.next
	if !change.Empty() {
		c.Logs = append(c.Logs, change)
	}
}

func (b *book) Committed(map[string]delta.LogSize) {
	b.written, b.redo, b.removing = b.capturing, false, nil
}

func (b *book) Failed() {
	b.redo, b.removable = true, append(b.removing, b.removable...)
}

func (b *book) settle(seq uint64) {
	delete(b.live, seq)
	if seq < b.written {
		b.removable = append(b.removable, keyInFlow(seq))
	}
}

// Whatever commits fail, and whether they reached the disk nevertheless: after one that succeeds the file holds what
// was alive when it was captured; after a crash it holds that of one that may have been written.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp("", "kubeferry-checkpoint-")
		if err != nil {
			rt.Fatal(err)
		}
		defer os.RemoveAll(dir)
		report := func(message string, err error) { rt.Fatal(message, err) }
		s, err := checkpoint.Open(dir, report)
		if err != nil {
			rt.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		store, b := &failing{Store: s}, &book{live: map[uint64]bool{}}
		c := checkpoint.NewCommitter(store, quiet())
		c.Register(b)
		var onDisk []uint64
		check := func() {
			got := seqsOf(t, s, "p")
			size := s.Logs()["p"]
			if !slices.Equal(got, onDisk) || size.Entries != uint64(len(onDisk)) || (size.Bytes == 0) != (len(onDisk) == 0) {
				rt.Fatalf("the file holds %d of %+v, want %d", got, size, onDisk)
			}
		}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.IntRange(0, 9).Draw(rt, "step") {
			case 0, 1, 2:
				for range rapid.IntRange(1, 20).Draw(rt, "new") {
					b.live[b.next] = true
					b.next++
				}
			case 3, 4:
				for _, seq := range slices.Sorted(maps.Keys(b.live)) {
					if rapid.Bool().Draw(rt, "settled") {
						b.settle(seq)
					}
				}
			case 5, 6:
				store.set(nil)
				if err := c.Begin(); err != nil {
					rt.Fatal(err)
				}
				onDisk = slices.Sorted(maps.Keys(b.live))
				check()
			case 7, 8:
				lies := rapid.Bool().Draw(rt, "lies")
				store.setLying(errors.New("disk full"), lies)
				if err := c.Begin(); err == nil {
					rt.Fatal("no error")
				}
				if lies {
					onDisk = slices.Sorted(maps.Keys(b.live))
				}
			case 9: // killed
				if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				if s, err = checkpoint.Open(dir, report); err != nil {
					rt.Fatal(err)
				}
				check()
				next := s.Logs()["p"].Next
				b = &book{live: map[uint64]bool{}, next: next, written: next}
				for _, seq := range onDisk {
					b.live[seq] = true
				}
				store = &failing{Store: s}
				c = checkpoint.NewCommitter(store, quiet())
				c.Register(b)
			}
		}
	})
}
