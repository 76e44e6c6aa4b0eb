package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

const (
	// interval is the longest time between a delta's hand-over and the commit that covers it: what is acknowledged
	// within it may be sent twice after a crash.
	interval = 200 * time.Millisecond
	// maxHandOvers make a commit due before its interval is over. With 1000, a stream of 100,000/s is captured so
	// often that most of it has had no time to be settled, and is written for nothing (BenchmarkCheckpoint: 14 µs per
	// delta, against 7.4 with 5000 and 6.6 without a checkpoint).
	maxHandOvers = 5000
	// retryInterval is the pause after a commit failed.
	retryInterval = time.Second
	// HangTimeout is after how long a commit counts as hanging.
	HangTimeout = 30 * time.Second
)

// Participant is a part of the program whose state the commits write.
type Participant interface {
	// Capture adds to the commit what changed since the last call. It is called while nothing is being handed over,
	// and must be quick.
	//
	// Before the next call follows exactly one of Committed or Failed.
	Capture(c *Commit)
	// Committed is called when what Capture added last is on disk.
	Committed(logs map[string]delta.LogSize)
	// Failed is called when what Capture added last could not be written. It may be on disk nevertheless, as when only the
	// last sync failed. The next Capture adds it anew, without what has come to nothing meanwhile: a disk that is full
	// may have room for that. It is called while nothing is being handed over.
	Failed()
}

// Committer writes commits for its participants. What moves between them, a delta from a watch to its pipelines, moves
// inside WithoutCapture, so that a commit holds it on one side or on the other.
type Committer struct {
	store        writer
	logger       *slog.Logger
	participants []Participant

	capture   sync.RWMutex // held for reading by WithoutCapture, for writing while participants capture or fail
	handOvers atomic.Int64 // since the last capture
	wake      chan struct{}

	writing  sync.Mutex // one commit at a time; guards what follows
	info     *Info      // that the next commit has to write; nil for the file's
	finished bool       // Finish was called

	mu    sync.Mutex // guards what follows
	err   error      // of the last commit, if it failed
	since time.Time  // when the first of the commits failed that have failed in a row; zero if the last one succeeded
	begun time.Time  // when the commit under way was; zero for none
}

// writer is what a committer needs of a [Store].
type writer interface {
	Commit(c *Commit) error
	Logs() map[string]delta.LogSize
	Info() Info
}

// NewCommitter makes a committer that writes to the store; it does nothing before Run. Without a store it never writes.
func NewCommitter(store writer, logger *slog.Logger) *Committer {
	return &Committer{store: store, logger: logger, wake: make(chan struct{}, 1)}
}

// Register adds participants, before Run.
func (c *Committer) Register(participants ...Participant) {
	c.participants = append(c.participants, participants...)
}

// WithoutCapture runs f while no commit captures. f must be quick: a commit waits for it.
func (c *Committer) WithoutCapture(f func()) {
	c.capture.RLock()
	f()
	c.capture.RUnlock()
	if c.handOvers.Add(1) == maxHandOvers {
		c.RequestCommit()
	}
}

// Exclusive runs f while nothing moves inside WithoutCapture, and no commit captures. f must be quick.
func (c *Committer) Exclusive(f func()) {
	c.capture.Lock()
	defer c.capture.Unlock()
	f()
}

// RequestCommit makes Run commit before the interval is over. It does not wait for the commit.
func (c *Committer) RequestCommit() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Commit writes a commit. As long as the disk refuses it tries again, until ctx ends with an error, which names the disk's too.
func (c *Committer) Commit(ctx context.Context) error {
	for {
		err := c.write(nil)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(retryInterval):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
	}
}

// ErrNoLog means that there is no log of a pipeline.
var ErrNoLog = errors.New("there is no log")

var errFinished = errors.New("kubeferry is stopping")

// DropLog deletes the log of a pipeline that does not run, and returns how much was in it. The commit holds nothing else: a disk that is full
// may have room for that.
func (c *Committer) DropLog(pipeline string) (delta.LogSize, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	size, exists := c.store.Logs()[pipeline]
	switch {
	case c.finished: // another replica may go on from the last commit
		return size, errFinished
	case !exists:
		return size, fmt.Errorf("%w of the pipeline %q", ErrNoLog, pipeline)
	}
	c.setBegun(time.Now())
	defer c.setBegun(time.Time{})
	return size, c.store.Commit(&Commit{DropLogs: []string{pipeline}})
}

// State returns what the last commit wrote of the state as a whole, and the size of each log. It waits for a commit under way.
func (c *Committer) State() (Info, map[string]delta.LogSize) {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.store.Info(), maps.Clone(c.store.Logs())
}

// Run commits until ctx ends.
func (c *Committer) Run(ctx context.Context) {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.wake:
		case <-ctx.Done():
			return
		}
		timer.Reset(interval)
		if c.write(nil) == nil {
			continue
		}
		select {
		case <-time.After(retryInterval - interval):
		case <-ctx.Done():
			return
		}
	}
}

// Begin writes the first commit, which marks a run as under way, before Run.
func (c *Committer) Begin() error {
	return c.write(func(info *Info) { info.Clean, info.Lost = false, false }) // from here on the watches have it
}

// Finish writes the last commit, which marks the run as ended well. Nothing may be handed over any more, and Run must have
// returned.
func (c *Committer) Finish() error {
	return c.write(func(info *Info) { info.Clean, c.finished = true, true })
}

// Err is the error of the last commit; nil once one succeeds. One that does not end is an error too.
func (c *Committer) Err() error {
	if writing := c.Writing(); writing > HangTimeout {
		return fmt.Errorf("a commit has not ended for %v", writing.Round(time.Second))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Failing returns for how long all commits have failed; 0 if the last one succeeded.
func (c *Committer) Failing() time.Duration {
	return c.elapsed(&c.since)
}

// Writing is for how long the commit under way has been written; 0 for none. A disk that hangs returns no error.
func (c *Committer) Writing() time.Duration {
	return c.elapsed(&c.begun)
}

// elapsed is how long ago a moment was that c.mu guards; 0 if it is zero.
func (c *Committer) elapsed(moment *time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if moment.IsZero() {
		return 0
	}
	return time.Since(*moment)
}

func (c *Committer) setBegun(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.begun = at
}

// write captures a commit and writes it. If that fails, each participant's Failed is called.
func (c *Committer) write(change func(*Info)) error {
	if c.store == nil {
		return nil
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if change != nil {
		info := c.store.Info()
		if c.info != nil {
			info = *c.info
		}
		change(&info)
		c.info = &info
	}
	next := &Commit{Info: c.info}
	c.capture.Lock()
	c.handOvers.Store(0)
	for _, p := range c.participants {
		p.Capture(next)
	}
	c.capture.Unlock()
	if err := c.writeCommit(next); err != nil {
		c.capture.Lock()
		defer c.capture.Unlock()
		for _, p := range c.participants {
			p.Failed()
		}
		return err
	}
	c.info = nil
	return nil
}

func (c *Committer) writeCommit(commit *Commit) error {
	var err error
	before := c.Err()
	if !commit.Empty() || before != nil { // after a failure only a commit shows that the disk works again
		c.setBegun(time.Now())
		err = c.store.Commit(commit)
		c.setBegun(time.Time{})
	}
	c.mu.Lock()
	if c.err = err; err == nil {
		c.since = time.Time{}
	} else if c.since.IsZero() {
		c.since = time.Now()
	}
	c.mu.Unlock()
	switch {
	case err != nil && before == nil:
		c.logger.Error("cannot write the checkpoint; deliveries go on, but a crash now would repeat them", "err", err)
	case err == nil && before != nil:
		c.logger.Info("the checkpoint can be written again")
	}
	if err != nil {
		return err
	}
	logs := c.store.Logs()
	for _, p := range c.participants {
		p.Committed(logs)
	}
	return nil
}
