package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// DeadLetter is a record that can never be delivered, as JSON.
type DeadLetter struct {
	// Seq orders dead letters.
	Seq    uint64          `json:"seq"`
	Letter json.RawMessage `json:"letter"`
}

// DeadLetterChange is what happened to the dead letters between two commits.
type DeadLetterChange struct {
	Append []DeadLetter
	Remove []uint64
}

func (c *DeadLetterChange) empty() bool { return len(c.Append)+len(c.Remove) == 0 }

// writeDeadLetters returns how much there is after a change.
func writeDeadLetters(r *recorder, meta *bucket, change *DeadLetterChange) (size delta.LogSize, err error) {
	w, err := openLog(r, deadLettersBucket, meta, deadLettersBucket)
	if err != nil {
		return size, err
	}
	for _, letter := range change.Append {
		if err := w.put(seqKey(letter.Seq), letter.Letter); err != nil {
			return size, err
		}
		w.size.Next = max(w.size.Next, letter.Seq+1)
	}
	for _, seq := range change.Remove {
		if err := w.delete(seqKey(seq)); err != nil {
			return size, err
		}
	}
	return w.size, w.close()
}

// DeadLetters returns how much there is.
func (s *Store) DeadLetters() delta.LogSize { return s.deadLetters }

// ReadDeadLetters returns dead letters from a number on, at least one if there is one, then up to maxBytes.
func (s *Store) ReadDeadLetters(from uint64, maxBytes int) (read []DeadLetter, err error) {
	err = s.db.View(func(tx *bolt.Tx) error {
		letters := bucketOf(tx, deadLettersBucket)
		if letters == nil {
			return nil
		}
		cursor, total := letters.Cursor(), 0
		for key, value := cursor.Seek(seqKey(from)); key != nil; key, value = cursor.Next() {
			if total += len(value); total > maxBytes && len(read) > 0 {
				return nil
			}
			read = append(read, DeadLetter{binary.BigEndian.Uint64(key), slices.Clone(value)})
		}
		return nil
	})
	return read, err
}

// ErrDeadLettersFull means that the dead letters take as much as they may.
var ErrDeadLettersFull = errors.New("the state directory holds as many dead letters as deadLetters.maxBytes allows: replay them, or raise it")

// DeadLetters keeps dead letters in the store, up to a bound. It is a participant of the commit.
type DeadLetters struct {
	store     *Store
	committer *Committer
	maxBytes  int64

	mu   sync.Mutex    // guards what follows
	size delta.LogSize // as of the last commit
	next uint64
	// fresh wait for a commit, and writing are those that one writes.
	fresh, writing []*freshLetter
	freshBytes     int64 // of both
	// removable are to be removed by the next commit, and the commit in progress removes removing.
	removable, removing []uint64
	// noRoom is the size of the largest letter that found no room since letters were removed: that one still waits after
	// smaller ones found room.
	noRoom int
}

type freshLetter struct {
	DeadLetter
	written chan error // receives one value
}

// NewDeadLetters makes the participant for a store; it registers itself.
func NewDeadLetters(store *Store, committer *Committer, maxBytes int64) *DeadLetters {
	d := &DeadLetters{store: store, committer: committer, maxBytes: maxBytes, size: store.DeadLetters(), next: store.DeadLetters().Next}
	committer.Register(d)
	return d
}

// Write returns when dead letters are on disk, and how many: all before the first for which there is no room, or none after another
// error. Those that could not be written may be there all the same.
func (d *DeadLetters) Write(ctx context.Context, letters ...[]byte) (written int, err error) {
	var last *freshLetter
	d.mu.Lock()
	for _, letter := range letters {
		if d.size.Bytes+d.freshBytes+int64(len(letter)) > d.maxBytes {
			d.noRoom = max(d.noRoom, len(letter))
			err = ErrDeadLettersFull
			break
		}
		if len(letter) >= d.noRoom {
			d.noRoom = 0
		}
		last = &freshLetter{DeadLetter{Seq: d.next, Letter: letter}, make(chan error, 1)}
		d.next++
		d.fresh, d.freshBytes = append(d.fresh, last), d.freshBytes+int64(len(letter))
		written++
	}
	d.mu.Unlock()
	if last == nil {
		return 0, err
	}
	d.committer.RequestCommit()
	select { // one commit writes them all
	case failed := <-last.written:
		if failed != nil {
			return 0, failed
		}
		return written, err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// Read is [Store.ReadDeadLetters].
func (d *DeadLetters) Read(_ context.Context, from uint64, maxBytes int) ([]DeadLetter, error) {
	return d.store.ReadDeadLetters(from, maxBytes)
}

// Remove returns when the letters are removed from the disk.
func (d *DeadLetters) Remove(ctx context.Context, seqs []uint64) error {
	d.mu.Lock()
	d.removable = append(d.removable, seqs...)
	d.mu.Unlock()
	return d.committer.Commit(ctx)
}

// DeadLetterStatus is how much the dead letters take.
type DeadLetterStatus struct {
	Entries  uint64 `json:"entries"`
	Bytes    int64  `json:"bytes"`
	MaxBytes int64  `json:"maxBytes"`
	// Full is set since a record found no room, until it finds some or letters are removed.
	Full bool `json:"full"`
}

// Status returns how much there is.
func (d *DeadLetters) Status() DeadLetterStatus {
	d.mu.Lock()
	defer d.mu.Unlock()
	return DeadLetterStatus{Entries: d.size.Entries, Bytes: d.size.Bytes, MaxBytes: d.maxBytes, Full: d.noRoom > 0}
}

// Capture implements [Participant].
func (d *DeadLetters) Capture(c *Commit) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fresh, d.writing = nil, d.fresh
	d.removable, d.removing = nil, d.removable
	c.DeadLetters.Remove = d.removing
	for _, f := range d.writing {
		c.DeadLetters.Append = append(c.DeadLetters.Append, f.DeadLetter)
	}
}

// Committed implements [Participant].
func (d *DeadLetters) Committed(map[string]delta.LogSize) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.size = d.store.DeadLetters()
	if len(d.removing) > 0 {
		d.removing, d.noRoom = nil, 0
	}
	d.answer(nil)
}

// Failed implements [Participant]. The records wait, and are written again under other numbers.
func (d *DeadLetters) Failed() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.removable, d.removing = append(d.removing, d.removable...), nil
	d.answer(fmt.Errorf("the state directory cannot be written: %w", d.committer.Err()))
}

func (d *DeadLetters) answer(err error) {
	for _, f := range d.writing {
		d.freshBytes -= int64(len(f.Letter))
		f.written <- err
	}
	d.writing = nil
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
