package replication

import (
	"testing"
	"time"
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
