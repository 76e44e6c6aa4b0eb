package replication

import (
	"bufio"
	"net"
	"sync"
	"time"
)

// frameCost is about what a frame takes in memory beside its content.
const frameCost = 128

// frame is one that a leader has sent.
type frame struct {
	kind    byte
	content []byte
	commit  uint64 // the number in it; only some frames have one
	arrived time.Time
}

// inbox has the frames that have arrived and are not applied yet: applyBytes and one more at most.
type inbox struct {
	mu      sync.Mutex // guards what follows
	changed *sync.Cond
	frames  []frame
	bytes   int
	err     error // why no more come
}

func newInbox() *inbox {
	in := &inbox{}
	in.changed = sync.NewCond(&in.mu)
	return in
}

// fill reads frames until the connection ends.
func (in *inbox) fill(conn net.Conn) {
	r := bufio.NewReaderSize(conn, 256<<10)
	for {
		var f frame
		err := conn.SetReadDeadline(time.Now().Add(silence))
		if err == nil {
			f.kind, f.content, err = readFrame(r, maxFrame)
		}
		if err == nil && (f.kind == frameCommit || f.kind == frameWhole || f.kind == frameAlive) {
			f.commit, err = readProgress(f.content)
		}
		f.arrived = time.Now()
		if !in.add(f, err) {
			return
		}
	}
}

// add waits for room. It returns false once no more frames are taken.
func (in *inbox) add(f frame, err error) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.err == nil && err == nil {
		in.frames, in.bytes = append(in.frames, f), in.bytes+len(f.content)+frameCost
	} else if in.err == nil {
		in.err = err
	}
	in.changed.Broadcast()
	for in.err == nil && in.bytes >= applyBytes {
		in.changed.Wait()
	}
	return in.err == nil
}

// take returns all that has arrived, and waits while that is nothing. Behind the last one it returns why no more come.
func (in *inbox) take() ([]frame, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for len(in.frames) == 0 && in.err == nil {
		in.changed.Wait()
	}
	if len(in.frames) == 0 {
		return nil, in.err
	}
	frames := in.frames
	in.frames, in.bytes = nil, 0
	in.changed.Broadcast()
	return frames, nil
}

// close ends fill.
func (in *inbox) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.err = net.ErrClosed
	in.changed.Broadcast()
}
