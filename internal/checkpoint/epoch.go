package checkpoint

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// infoPattern matches an [Info] as it is in a file, its key before it. In the JSON of an object it would be escaped.
var infoPattern = regexp.MustCompile(`meta\{"format":\d+,"clusterUID":"[^"]*","epoch":(\d+),"clean":(?:true|false)(,"rolledBack":true)?`)

// raisedPattern matches what is kept of a watch (source.Meta) as it is in a file, its key before it, up to the highest sequence that was
// raised. In the JSON of an object it would be escaped, too.
var raisedPattern = regexp.MustCompile(`meta\{"source":"[^{}]*"namespaces":\{[^{}]*\}[^{}]*"edited":(\d+)`)

const (
	// unreadableEpochs is how many epochs a file may have seen that does not show its own. Each is a restore of etcd.
	unreadableEpochs = 100
	maxEpoch         = 999 // of the three digits in a sequence
	// highestRaised is the highest raised sequence that is followed: see package source.
	highestRaised = 1e16
)

// highestBehind returns an epoch that is not before any that was in use in a state directory, whatever is damaged: sequences would
// go back. raised is the highest sequence that its files show as raised above resource versions.
func highestBehind(dir string) (epoch int, raised uint64, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0, err
	}
	unreadable := 0
	for _, e := range entries {
		if e.Name() != fileName && !strings.HasPrefix(e.Name(), fileName+asideInfix) {
			continue
		}
		highest, above, found, err := highestOf(filepath.Join(dir, e.Name()))
		if err != nil {
			return 0, 0, err
		}
		epoch, raised = max(epoch, highest), max(raised, above)
		if !found {
			unreadable++
		}
	}
	return min(epoch+unreadable*unreadableEpochs, maxEpoch), raised, nil
}

// highestOf returns the highest epoch and raised sequence that a file shows in any of its pages, used or free.
func highestOf(path string) (epoch int, raised uint64, found bool, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, false, err
	}
	defer file.Close()
	const overlap = 64 << 10 // more than a match takes
	buffer, kept := make([]byte, 1<<20), 0
	for {
		n, err := io.ReadFull(file, buffer[kept:])
		text := buffer[:kept+n]
		for _, match := range infoPattern.FindAllSubmatch(text, -1) {
			number, err := strconv.Atoi(string(match[1]))
			if err != nil {
				continue // more digits than a number has
			}
			if len(match[2]) > 0 { // the next start would have begun another
				number++
			}
			epoch, found = max(epoch, number), true
		}
		for _, match := range raisedPattern.FindAllSubmatch(text, -1) {
			if number, err := strconv.ParseUint(string(match[1]), 10, 64); err == nil && number < highestRaised {
				raised = max(raised, number)
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return epoch, raised, found, nil
		}
		if err != nil {
			return 0, 0, false, err
		}
		kept = copy(buffer, text[len(text)-overlap:])
	}
}
