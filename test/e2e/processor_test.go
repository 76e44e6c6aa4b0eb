package e2e_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
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

// lastSeen has the times that processes had when ownProcesses last saw them.
var lastSeen = struct {
	mu sync.Mutex // guards what follows
	of map[string]processorTimes
}{of: map[string]processorTimes{}}

// ownProcesses returns the times of this process and of those that it started. What has ended counts with the times that were seen last:
// if the sum fell whenever a test beside this one ends a program, a busy machine would look like one that is not.
func ownProcesses(tb testing.TB) (all processorTimes) {
	tb.Helper()
	lastSeen.mu.Lock()
	defer lastSeen.mu.Unlock()
	see := func(pid int, started string) {
		key, now := fmt.Sprint(pid, " ", started), timesOf(tb, pid)
		before := lastSeen.of[key] // threads end too
		lastSeen.of[key] = processorTimes{max(before.ran, now.ran), max(before.waited, now.waited)}
	}
	see(os.Getpid(), "")
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
		fields := strings.Fields(rest)
		if len(fields) < 20 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(stat)))
		if err != nil {
			tb.Fatal(err)
		}
		see(pid, fields[19]) // with its start, as a number is used again
	}
	for _, its := range lastSeen.of {
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

// TestTimesOfWhatHasEnded has a program end between two sums.
func TestTimesOfWhatHasEnded(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "i=0; while [ $i -lt 500000 ]; do i=$((i+1)); done; echo; read x")
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stdout.Read(make([]byte, 1)); err != nil { // it has run
		t.Error(err)
	}
	before := ownProcesses(t)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if times := ownProcesses(t).since(before); times.ran < 0 || times.waited < 0 {
		t.Errorf("what ran since then: %+v", times)
	}
}
