package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// epochPattern matches an [Info] as it is in a file, its key before it. In the JSON of an object it would be escaped.
var epochPattern = regexp.MustCompile(`meta\{"format":\d+,"clusterUID":"[^"]*","epoch":(\d+),"clean":`)

const (
	// unreadableEpochs is how many epochs a file may have seen that does not show its own. Each is a restore of etcd.
	unreadableEpochs = 100
	maxEpoch         = 999 // of the three digits in a sequence
)

// infoBehind returns the [Info] of a new state file that replaces those set aside, and the one at path if that is damaged. Its epoch
// is higher than all of theirs, even if they do not show it: else sequences would go back, since no commit has how high they were
// raised. It is empty if there are none.
func infoBehind(path string, damaged bool) (Info, error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return Info{}, err
	}
	var files []string // by age
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fileName+asideInfix) && e.Type().IsRegular() {
			files = append(files, filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
	if damaged {
		files = append(files, path)
	}
	if len(files) == 0 {
		return Info{}, nil
	}
	epoch, unreadable := 0, 0
	for _, file := range files {
		highest, found, err := epochOf(file)
		switch {
		case err != nil:
			return Info{}, err
		case found:
			epoch, unreadable = max(epoch, highest), 0 // it began behind those before it
		default:
			unreadable++
		}
	}
	return Info{Epoch: min(epoch+max(1, unreadable*unreadableEpochs), maxEpoch), Lost: true}, nil
}

// epochOf returns the highest epoch that a file shows in any of its pages, used or free.
func epochOf(path string) (epoch int, found bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false, err
	}
	defer file.Close()
	const overlap = 64 << 10 // more than a match takes
	buffer, kept := make([]byte, 1<<20), 0
	for {
		n, err := io.ReadFull(file, buffer[kept:])
		text := buffer[:kept+n]
		for _, match := range epochPattern.FindAllSubmatch(text, -1) {
			if number, err := strconv.Atoi(string(match[1])); err == nil { // else it has more digits than a number
				epoch, found = max(epoch, number), true
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return epoch, found, nil
		}
		if err != nil {
			return 0, false, err
		}
		kept = copy(buffer, text[len(text)-overlap:])
	}
}

// whatIsLeft counts what can be read of a file that cannot be used.
func whatIsLeft(path string) string {
	waiting, letters := uint64(0), uint64(0)
	_ = Salvage(path, Salvaged{ // what cannot be read is not counted
		Entry:  func(string, delta.Entry) error { waiting++; return nil },
		Letter: func([]byte) error { letters++; return nil },
	})
	return left(waiting, letters)
}

// left counts what a file that is set aside holds.
func left(waiting, letters uint64) string {
	return fmt.Sprintf("%d undelivered entries and %d dead letters", waiting, letters)
}

// asideInfix is between the name of a file that is set aside and the time.
const asideInfix = ".set-aside-"

func setAside(path, reason string, cause error, report func(message string, err error)) error {
	aside := fmt.Sprintf("%s%s%s", path, asideInfix, time.Now().UTC().Format("20060102T150405.000000000"))
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("set the state file aside (%s): %w", reason, errors.Join(cause, err))
	}
	report("the state file is set aside as "+aside+" and a new one begun: "+reason, cause)
	return nil
}
