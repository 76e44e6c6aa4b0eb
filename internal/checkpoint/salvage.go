package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Salvaged takes what can be read of a damaged file. A function that is nil takes nothing.
type Salvaged struct {
	// Info is called first, if it can be read.
	Info func(Info)
	// Entry is called with each undelivered entry of a log, in the order of each log.
	Entry func(pipeline string, e delta.Entry) error
	// Letter is called with each dead letter, behind the entries, which are later.
	Letter func(letter []byte) error
}

// Salvage reads what can be read of a state file that was set aside. It leaves the file alone. Its error joins what could not be
// read: each page that is damaged hides what is behind it in its bucket.
func Salvage(path string, to Salvaged) error {
	var db *bolt.DB
	err := readable(func() (err error) {
		db, err = bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true, Timeout: lockTimeout})
		return err
	})
	if err != nil {
		return fmt.Errorf("nothing of %s can be read: %w", path, err)
	}
	defer db.Close()
	return db.View(func(tx *bolt.Tx) error {
		var names [][]byte
		damage := []error{
			readable(func() error {
				var info Info
				err := json.Unmarshal(tx.Bucket(metaBucket).Get(metaKey), &info)
				if err == nil && to.Info != nil {
					to.Info(info)
				}
				return err
			}),
			readable(func() error {
				return tx.Bucket(logsBucket).ForEachBucket(func(name []byte) error {
					names = append(names, slices.Clone(name))
					return nil
				})
			}),
		}
		for _, name := range names {
			damage = append(damage, readable(func() error {
				return tx.Bucket(logsBucket).Bucket(name).ForEach(func(key, value []byte) error {
					if len(key) != 8 || to.Entry == nil {
						return nil
					}
					seq := binary.BigEndian.Uint64(key)
					entry, err := decodeEntry(seq, value)
					if err != nil {
						entry = damagedEntry(seq, value, err)
					}
					return to.Entry(string(name), entry)
				})
			}))
		}
		return errors.Join(append(damage, readable(func() error {
			letters := tx.Bucket(deadLettersKey)
			if letters == nil || to.Letter == nil {
				return nil
			}
			return letters.ForEach(func(_, letter []byte) error { return to.Letter(letter) })
		}))...)
	})
}

// readable runs a function that reads a damaged file, and returns a panic of bbolt as an error.
func readable(read func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged: %v", r)
		}
	}()
	return read()
}
