package replication

import (
	"bufio"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// TestSilentStandby: a standby whose node is gone is not in sync, although nothing is left for it to acknowledge.
func TestSilentStandby(t *testing.T) {
	now := time.Now()
	s := &standby{whole: true, heard: now}
	if _, _, ok := s.inSync(now.Add(aliveInterval)); !ok {
		t.Error("a standby that has just acknowledged something is not in sync")
	}
	if _, _, ok := s.inSync(now.Add(inSyncWithin)); ok {
		t.Error("a standby that is silent is in sync")
	}
}

// What is being written to a standby counts as waiting for it, until it is written.
func TestQueueCountsWhatIsBeingWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		defer theirs.Close()
		s := &standby{conn: ours, wake: make(chan struct{}, 1)}
		const n = maxQueue >> 20 * 3 / 4
		commits := func() {
			for range n {
				s.enqueue(&commit{at: time.Now(), changes: []checkpoint.Changes{make(checkpoint.Changes, 1<<20)}, bytes: 1 << 20})
			}
		}
		commits()
		var flushing sync.WaitGroup
		flushing.Go(func() { _, _ = s.flush(bufio.NewWriter(ours), 0) })
		synctest.Wait()
		if s.dropped != nil {
			t.Fatal(s.dropped)
		}
		commits()
		if s.dropped == nil {
			t.Errorf("%d MiB wait for a standby", 2*n)
		}
		flushing.Wait()

		ours, theirs = net.Pipe()
		s = &standby{conn: ours, wake: make(chan struct{}, 1)}
		flushing.Go(func() { _, _ = io.Copy(io.Discard, theirs) })
		for range 2 {
			commits()
			if _, err := s.flush(bufio.NewWriter(ours), 0); err != nil || s.dropped != nil {
				t.Error(err, s.dropped)
			}
		}
		_ = ours.Close()
		flushing.Wait()
	})
}
