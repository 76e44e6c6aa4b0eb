package e2e_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// processorTimes is how long threads have run, and how long they have waited for a processor that ran something else. Linux counts
// that for each thread; elsewhere both are zero.
type processorTimes struct{ ran, waited time.Duration }

func (p processorTimes) since(before processorTimes) processorTimes {
	return processorTimes{p.ran - before.ran, p.waited - before.waited}
}

// slowed returns how long may take what takes d where no thread waits. A bound on a time so holds on a busy machine too. What hangs
// runs little, and is not waited for without end.
func (p processorTimes) slowed(d time.Duration) time.Duration {
	if p.ran <= 0 {
		return d
	}
	return time.Duration(float64(d) * min(10, 1+max(0, float64(p.waited)/float64(p.ran))))
}

// ownProcesses returns the times of this process and of those that it started.
func ownProcesses(tb testing.TB) processorTimes {
	tb.Helper()
	all := timesOf(tb, os.Getpid())
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		tb.Fatal(err)
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil { // it has ended
			continue
		}
		_, rest, _ := strings.Cut(string(text), ") ") // behind the name
		if fields := strings.Fields(rest); len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			tb.Fatal(err)
		}
		its := timesOf(tb, pid)
		all.ran, all.waited = all.ran+its.ran, all.waited+its.waited
	}
	return all
}

// timesOf returns the times of the threads of a process.
func timesOf(tb testing.TB, pid int) (times processorTimes) {
	tb.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) { // it has ended
			continue
		}
		var ran, waited int64
		if err == nil {
			_, err = fmt.Sscan(string(text), &ran, &waited)
		}
		if err != nil {
			tb.Fatalf("%s: %v", thread, err)
		}
		times.ran, times.waited = times.ran+time.Duration(ran), times.waited+time.Duration(waited)
	}
	return times
}
