package checkpoint

import (
	"bytes"
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Salvaged takes what can be read of a file that was set aside.
type Salvaged struct {
	// Entry is called with each undelivered entry of a log, flow by flow, in the order of each.
	Entry func(pipeline string, e delta.Entry) error
	// Letter is called with each dead letter, behind the entries, which are later.
	Letter func(letter []byte) error
}

// Salvage reads a state file that was set aside, and leaves it alone. Its error joins what could not be read: damage hides what stands
// behind it in the same log, and nothing else.
func Salvage(path string, to Salvaged) error {
	var damage []error
	err := readFile(path, func(tx *bolt.Tx) error {
		part := func(name string, read func() error) {
			if err := guarded(read); err != nil {
				damage = append(damage, fmt.Errorf("%s: %w", name, err))
			}
		}
		part("logs", func() error {
			buckets := tx.Cursor()
			for name, _ := buckets.Seek([]byte(logPrefix)); bytes.HasPrefix(name, []byte(logPrefix)); name, _ = buckets.Next() {
				pipeline := string(name[len(logPrefix):])
				part("log of "+pipeline, func() error { return salvageLog(tx.Bucket(name), pipeline, to) })
			}
			return nil
		})
		part("dead letters", func() error {
			letters := bucketOf(tx, deadLettersBucket)
			if letters == nil {
				return nil
			}
			return letters.ForEach(func(_, letter []byte) error { return to.Letter(letter) })
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("nothing of %s can be read: %w", path, err)
	}
	return errors.Join(damage...)
}

func salvageLog(log *bolt.Bucket, pipeline string, to Salvaged) error {
	return log.ForEach(func(key, value []byte) error {
		if isAttempts(key) {
			return nil
		}
		at, ok := splitKey(key)
		if !ok {
			return fmt.Errorf("%w: damaged: an entry without a number", errUnusable)
		}
		return to.Entry(pipeline, readEntry(at, value))
	})
}
