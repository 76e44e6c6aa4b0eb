package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

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

// maxReported bounds how much of a damaged file is named.
const maxReported = 10

// Salvage reads what can be read of a state file that was set aside. It leaves the file alone. Its error joins what could not be
// read: each page that is damaged hides what is behind it in its bucket.
func Salvage(path string, to Salvaged) error {
	var damage []error
	more := 0
	note := func(err error) error {
		if len(damage) < maxReported {
			damage = append(damage, err)
		} else {
			more++
		}
		return nil
	}
	err := readPages(path, note, func(f *pageFile, root storedBucket) error {
		found, err := f.read(root, true, func(_, _ []byte) error { return nil })
		if err != nil {
			return err
		}
		top := map[string]storedBucket{}
		for _, b := range found {
			top[b.name] = b
		}
		return errors.Join(salvageInfo(f, top, to), salvageLogs(f, top, to), salvageLetters(f, top, to))
	})
	if err != nil && len(damage) == 0 {
		return fmt.Errorf("nothing of %s can be read: %w", path, err)
	}
	if more > 0 {
		damage = append(damage, fmt.Errorf("and %d more", more))
	}
	return errors.Join(append(damage, err)...)
}

func salvageInfo(f *pageFile, top map[string]storedBucket, to Salvaged) error {
	meta, ok := top[string(metaBucket)]
	if !ok {
		return f.damage("no information on the last run")
	}
	_, err := f.read(meta, true, func(key, value []byte) error {
		var info Info
		if string(key) != string(metaKey) || to.Info == nil {
			return nil
		}
		if err := json.Unmarshal(value, &info); err != nil {
			return f.damage("%v", err)
		}
		to.Info(info)
		return nil
	})
	return err
}

func salvageLogs(f *pageFile, top map[string]storedBucket, to Salvaged) error {
	logs, ok := top[string(logsBucket)]
	if !ok {
		return f.damage("no logs")
	}
	all, err := f.read(logs, true, func(_, _ []byte) error { return nil })
	for _, log := range all {
		if err != nil {
			return err
		}
		_, err = f.read(log, true, func(key, value []byte) error {
			if len(key) != 8 || to.Entry == nil {
				return nil
			}
			seq := binary.BigEndian.Uint64(key)
			entry, err := decodeEntry(seq, value)
			if err != nil {
				entry = damagedEntry(seq, value, err)
			}
			return to.Entry(log.name, entry)
		})
	}
	return err
}

func salvageLetters(f *pageFile, top map[string]storedBucket, to Salvaged) error {
	letters, ok := top[string(deadLettersKey)]
	if !ok || to.Letter == nil {
		return nil
	}
	_, err := f.read(letters, true, func(_, letter []byte) error { return to.Letter(letter) })
	return err
}
