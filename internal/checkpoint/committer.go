package checkpoint

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// interval is the longest that something handed over stays unsecured: what is acknowledged within it may be sent
	// twice after a crash.
	interval = 200 * time.Millisecond
	// handOvers that make a commit due before its interval is over. With 1000, a stream of 100,000/s is captured so
	// often that most of it has had no time to be settled, and is written for nothing (BenchmarkCheckpoint: 14 µs per
	// delta, against 7.4 with 5000 and 6.6 without a checkpoint).
	handOvers = 5000
	// retryInterval is the pause after a commit failed.
	retryInterval = time.Second
)

// Participant is a part of the program whose state a commit secures.
type Participant interface {
	// Capture adds to the commit what changed since the last call. It is called while nothing is being handed over,
	// and must be quick.
	//
	// Before the next call follows exactly one of Committed or Failed.
	Capture(c *Commit)
	// Committed says that what Capture added last is on disk.
	Committed(logs map[string]LogSize)
	// Failed says that what Capture added last could not be written. It may be on disk nevertheless, as when only the
	// last sync failed. The next Capture adds it anew, without what has come to nothing meanwhile: a disk that is full
	// may have room for that. It is called while nothing is being handed over.
	Failed()
}

// Committer writes commits for its participants. What moves between them, a delta handed from a watch to its
// pipelines, moves inside Hand, so that a commit sees it on one side or on the other.
type Committer struct {
	store        writer
	logger       *slog.Logger
	participants []Participant

	hand   sync.RWMutex // held for reading by Hand, for writing while a commit captures, or is given back
	handed atomic.Int64 // since the last capture
	wake   chan struct{}

	writing sync.Mutex // one commit at a time; guards what follows
	info    *Info      // that the next commit has to write; nil for the file's

	mu  sync.Mutex // guards what follows
	err error      // of the last commit, if it failed
	// begun and done count commits; changed is closed when done grows.
	begun, done uint64
	changed     chan struct{}
}

// writer is what a committer needs of a [Store].
type writer interface {
	Commit(c *Commit) error
	Logs() map[string]LogSize
	Info() Info
}

// NewCommitter makes a committer that writes to the store; it does nothing before Run.
func NewCommitter(store writer, logger *slog.Logger) *Committer {
	return &Committer{store: store, logger: logger, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// Secure adds participants, before Run.
func (c *Committer) Secure(participants ...Participant) {
	c.participants = append(c.participants, participants...)
}

// Hand runs f at a moment when no commit captures. f must be quick.
func (c *Committer) Hand(f func()) {
	c.hand.RLock()
	f()
	c.hand.RUnlock()
	if c.handed.Add(1) == handOvers {
		c.Soon()
	}
}

// Soon asks for a commit before the interval is over.
func (c *Committer) Soon() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Commit returns when a commit that began after the call is on disk, or ctx has ended, with its error. As long as
// the disk refuses, it waits.
func (c *Committer) Commit(ctx context.Context) error {
	c.mu.Lock()
	want := c.begun + 1
	c.mu.Unlock()
	for {
		c.Soon()
		c.mu.Lock()
		done, changed := c.done, c.changed
		c.mu.Unlock()
		if done >= want {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
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
		select { // whoever wants a commit soon waits as well
		case <-time.After(retryInterval - interval):
		case <-ctx.Done():
			return
		}
	}
}

// Begin writes the first commit, which says that a run is under way, before Run.
func (c *Committer) Begin() error {
	return c.write(func(info *Info) { info.Clean = false })
}

// Finish writes the last commit, which says that the run ended well, and whether because the API server's history
// went back. Nothing may be handed over any more, and Run must have returned.
func (c *Committer) Finish(rolledBack bool) error {
	return c.write(func(info *Info) { info.Clean, info.RolledBack = true, info.RolledBack || rolledBack })
}

// RolledBack notes, in a commit of its own, that the API server's history went back: the next start must know, however
// this run ends.
func (c *Committer) RolledBack() error {
	return c.write(func(info *Info) { info.RolledBack = true })
}

// Err is the error of the last commit; nil once one succeeds.
func (c *Committer) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// write captures a commit and writes it. One that fails is given back to the participants.
func (c *Committer) write(change func(*Info)) error {
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
	c.mu.Lock()
	c.begun++
	number := c.begun
	c.mu.Unlock()
	c.hand.Lock()
	c.handed.Store(0)
	for _, p := range c.participants {
		p.Capture(next)
	}
	c.hand.Unlock()
	if err := c.secure(next); err != nil {
		c.hand.Lock()
		defer c.hand.Unlock()
		for _, p := range c.participants {
			p.Failed()
		}
		return err
	}
	c.info = nil
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done = number
	close(c.changed)
	c.changed = make(chan struct{})
	return nil
}

func (c *Committer) secure(commit *Commit) error {
	var err error
	before := c.Err()
	if !commit.Empty() || before != nil { // after a failure only the disk can tell that it is well
		err = c.store.Commit(commit)
	}
	c.mu.Lock()
	c.err = err
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
