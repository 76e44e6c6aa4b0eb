//go:build unix

package process_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/test/internal/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func start(t *testing.T, script string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Options{
		Path: "/bin/sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestKillEndsTheWholeGroup(t *testing.T) {
	p := start(t, "sleep 600 & echo started; wait")
	err := p.WaitReady(t.Context(), func(context.Context) error {
		if p.LogTail() != "started" {
			return errors.New("no output yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()

	for end := time.Now().Add(10 * time.Second); runs(p.Pid()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the group still runs")
		}
	}
}

// runs reports whether a member of a process group runs. A killed grandchild is a zombie until init reaps it, which some containers' init
// never does.
func runs(group int) bool {
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		stat, _ := os.ReadFile(file) // see proc_pid_stat(5): "pid (name) state parent group …"
		_, behind, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(behind); len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" {
			return true
		}
	}
	return len(stats) == 0 // no Linux, where init reaps it
}

func TestStopKillsWhoIgnoresIt(t *testing.T) {
	p := start(t, "trap '' TERM; echo started; while :; do sleep 0.05; done")
	err := p.WaitReady(t.Context(), func(context.Context) error {
		if p.LogTail() != "started" {
			return errors.New("no output yet")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Stop(50 * time.Millisecond)
	select {
	case <-p.Done():
	default:
		t.Error("it still runs after Stop")
	}
}

func TestWaitReadyReportsAnEarlyEnd(t *testing.T) {
	p := start(t, "echo cannot bind; exit 3")
	err := p.WaitReady(t.Context(), func(context.Context) error { return errors.New("refused") })
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "cannot bind") {
		t.Errorf("got %v, want the exit status and the log", err)
	}
}
