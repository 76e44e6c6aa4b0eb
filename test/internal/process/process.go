//go:build unix

// Package process runs the servers that tests need as child processes, and makes sure that none of them survives.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Options are what to run.
type Options struct {
	Path string
	Args []string
	Env  []string // added to this process's environment
	Dir  string
	Log  string // file that stdout and stderr are appended to
	// Stdout, if set, is the file that stdout goes to instead.
	Stdout string
}

// Process is a running program, the leader of a process group of its own.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the program has ended and was waited for
	err  error         // how it ended; read only after done
}

// Start runs a program. It ends with [Process.Stop] or [Process.Kill], and on Linux also when this process dies, so
// that a test binary that panics or runs into its time-out leaves no server behind.
func Start(o Options) (*Process, error) {
	log, err := os.OpenFile(o.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own copy

	cmd := exec.Command(o.Path, o.Args...) //nolint:noctx // it outlives the call; Stop and Kill end it
	cmd.Dir = o.Dir
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if o.Stdout != "" {
		stdout, err := os.OpenFile(o.Stdout, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return nil, err
		}
		defer func() { _ = stdout.Close() }()
		cmd.Stdout = stdout
	}
	cmd.SysProcAttr = attributes()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", filepath.Base(o.Path), err)
	}
	p := &Process{name: filepath.Base(o.Path), log: o.Log, cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
	}()
	return p, nil
}

// WaitReady calls probe until it succeeds. It fails as soon as the program ends, with the end of its log.
func (p *Process) WaitReady(ctx context.Context, probe func(ctx context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := probe(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended: %w\n%s", p.name, errors.Join(p.err, err), p.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w: %w\n%s", p.name, ctx.Err(), err, p.LogTail())
		case <-tick.C:
		}
	}
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns when the program has ended, with the error of [exec.Cmd.Wait].
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Pid is the program's process id, which is also the id of its process group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Kill ends the process group with SIGKILL, as a crash or the system would, and waits until it is gone.
func (p *Process) Kill() {
	p.Signal(syscall.SIGKILL)
	<-p.done
}

// Stop sends SIGTERM to the process group and kills it after grace.
func (p *Process) Stop(grace time.Duration) {
	p.Signal(syscall.SIGTERM)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
	}
}

// Signal sends sig to the process group, unless the program has ended.
func (p *Process) Signal(sig syscall.Signal) {
	select {
	case <-p.done: // its id may belong to something else by now
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// LogTail is the end of what the program wrote, for error messages.
func (p *Process) LogTail() string {
	const limit = 4 << 10
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > limit {
		b = b[len(b)-limit:]
	}
	return string(bytes.TrimSpace(b))
}
