package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Commit is what one transaction writes.
type Commit struct {
	Watches []delta.WatchChange
	// Offset is what is added to resource versions to make sequences; it never falls.
	Offset uint64
	Logs   []delta.LogChange
	// DropWatches are forgotten altogether.
	DropWatches []string
	// DropLogs are the pipelines whose logs are deleted. None of them is running.
	DropLogs    []string
	DeadLetters DeadLetterChange
	// Info replaces the file's, where it is not nil.
	Info *Info
}

// Empty reports whether there is nothing to write.
func (c *Commit) Empty() bool {
	return len(c.Watches) == 0 && len(c.Logs) == 0 && len(c.DropWatches) == 0 && len(c.DropLogs) == 0 && c.DeadLetters.empty() &&
		c.Info == nil
}

// Commit writes all of c, or nothing. After an error the file holds all of it or nothing.
//
// After a full disk it returns the same error for up to fullDiskPause, until the disk has more room: each attempt that fails has bbolt read
// all pages of the file. A commit that only drops logs is always tried.
func (s *Store) Commit(c *Commit) (err error) {
	if s.full.waits(s.path) && len(c.DropLogs) == 0 {
		return s.full.err
	}
	defer func() {
		if r := recover(); r != nil { // bbolt panics on a damaged page
			err = fmt.Errorf("commit: %v", r)
		}
	}()
	sizes, deadLetters := maps.Clone(s.sizes), s.deadLetters
	info := s.info
	if c.Info != nil {
		info = *c.Info
	}
	raised := c.Offset > info.Offset
	info.Offset = max(info.Offset, c.Offset)
	if s.tap != nil {
		info.Replica = s.info.Replica.next()
	}
	r := &recorder{keeps: s.tap != nil}
	err = s.db.Update(func(tx *bolt.Tx) error {
		r.tx = tx
		meta, metaErr := r.bucket(metaBucket)
		watches, watchesErr := r.bucket(watchesBucket)
		logs, logsErr := r.bucket(logsBucket)
		if err := errors.Join(metaErr, watchesErr, logsErr); err != nil {
			return err
		}
		for _, id := range c.DropWatches {
			if err := errors.Join(watches.Delete([]byte(id)), r.drop(knownPrefix+id), r.drop(previousPrefix+id)); err != nil {
				return err
			}
		}
		for _, pipeline := range c.DropLogs {
			delete(sizes, pipeline)
			if err := errors.Join(logs.Delete([]byte(pipeline)), r.drop(logPrefix+pipeline)); err != nil {
				return err
			}
		}
		for i := range c.Watches {
			if err := writeWatch(r, watches, &c.Watches[i]); err != nil {
				return err
			}
		}
		entries := encodedEntries{}
		for i := range c.Logs {
			if err := writeLog(r, logs, &c.Logs[i], entries, sizes); err != nil {
				return err
			}
		}
		if !c.DeadLetters.empty() {
			var err error
			if deadLetters, err = writeDeadLetters(r, meta, &c.DeadLetters); err != nil {
				return err
			}
		}
		if c.Info != nil || s.tap != nil || raised {
			return putJSON(meta, metaKey, info)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("commit to %s: %w", s.path, err)
		s.full = newFullDisk(s.path, err)
		return err
	}
	s.full = nil
	s.sizes, s.deadLetters, s.info = sizes, deadLetters, info
	if s.tap != nil {
		s.tap(info.Replica, r.end())
	}
	return nil
}

func writeWatch(r *recorder, watches *bucket, change *delta.WatchChange) error {
	known, err := r.bucket(knownPrefix + change.Watch)
	if err != nil {
		return err
	}
	known.FillPercent = 0.9 // a snapshot comes in order, and what changes later is no larger
	previous, err := previousVersions(r, change)
	if err != nil {
		return err
	}
	var key []byte
	for i := range change.Remove {
		key = appendKnownKey(key[:0], &change.Remove[i])
		if err := errors.Join(known.Delete(key), writePrevious(previous, key, &delta.Known{})); err != nil {
			return err
		}
	}
	// In the order of the keys: bbolt inserts into sorted pages, and in the order of a Go map each insertion moves half of
	// one (BenchmarkKnown).
	put := make([]*delta.Known, len(change.Put))
	for i := range change.Put {
		put[i] = &change.Put[i]
	}
	slices.SortFunc(put, func(a, b *delta.Known) int {
		if a.Namespace != b.Namespace {
			return strings.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Name, b.Name)
	})
	var values []byte // of all of them: bbolt copies keys, and keeps values until the transaction ends
	for _, k := range put {
		key = appendKnownKey(key[:0], k)
		if err := writePrevious(previous, key, k); err != nil {
			return err
		}
		from := len(values)
		values = appendKnown(values, k)
		if err := known.Put(key, values[from:len(values):len(values)]); err != nil {
			return err
		}
	}
	return watches.Put([]byte(change.Watch), change.Meta)
}

// previousVersions returns the bucket of what is retained of a watch's objects, which is made when there is the first; or nil.
func previousVersions(r *recorder, change *delta.WatchChange) (*bucket, error) {
	if !slices.ContainsFunc(change.Put, func(k delta.Known) bool { return k.Retained }) {
		return r.existing(previousPrefix + change.Watch), nil
	}
	return r.bucket(previousPrefix + change.Watch)
}

// writePrevious writes what is retained of an object.
func writePrevious(previous *bucket, key []byte, k *delta.Known) error {
	switch {
	case previous == nil:
		return nil
	case !k.Retained:
		return previous.Delete(key)
	case k.Previous != nil:
		return previous.Put(key, k.Previous)
	default: // the file has it
		return nil
	}
}
