package checkpoint

import (
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/durable"
)

const (
	// A file of at least compactFrom bytes is compacted at a start, unless more than 1/compactPart of it is in use. A standby acknowledges
	// no commits meanwhile, so that its bounds are others.
	compactFrom, compactPart               = 4 << 20, 2
	compactFollowingFrom, compactFollowing = 16 << 20, 8
	// compactTx bounds the transactions of the copy.
	compactTx = 8 << 20
)

// compact gives the space back that deliveries freed: a bbolt file never shrinks by itself. It returns the database
// to use, which is the old one if the file is smaller than from, more than a part of it is in use, or the disk has no room for the copy.
func compact(db *bolt.DB, path string, from, part int64) (*bolt.DB, error) {
	size := fileSize(path)
	if size < from {
		return db, nil
	}
	var used int64
	err := db.View(func(tx *bolt.Tx) error {
		stats := db.Stats()
		used = tx.Size() - int64(stats.FreePageN+stats.PendingPageN)*int64(db.Info().PageSize)
		return nil
	})
	if err != nil || used > size/part {
		return db, err
	}
	smaller := path + ".compacting"
	_ = os.Remove(smaller) // of a start that was interrupted; if it cannot be removed, opening it fails
	target, err := openFile(smaller)
	if err != nil {
		return db, nil //nolint:nilerr // costs disk, nothing else
	}
	err = bolt.Compact(target, db, compactTx)
	if err == nil {
		// The new file is locked before it takes the old one's place.
		err = os.Rename(smaller, path)
	}
	if err != nil {
		_, _ = target.Close(), os.Remove(smaller)
		return db, nil //nolint:nilerr // as above
	}
	_ = durable.SyncDir(filepath.Dir(path)) // else a loss of power may bring the old file back, which is as good
	return target, db.Close()
}
