//go:build unix

package process_test

import (
	"context"
	"errors"
	"path/filepath"
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

	// The grandchild is reaped by init, shortly after.
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !errors.Is(syscall.Kill(-p.Pid(), 0), syscall.ESRCH) {
		if ctx.Err() != nil {
			t.Skip("nothing reaps orphans here")
		}
		<-time.After(10 * time.Millisecond)
	}
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
