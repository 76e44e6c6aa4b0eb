package source

import (
	"testing"
	"time"
)

// Versions that are a time in nanoseconds do not raise the offset: ten of them would use up all numbers.
func TestOffsetBesideNanoseconds(t *testing.T) {
	now := func() time.Time { return time.Unix(1_800_000_000, 0) }
	offset := NewOffset(5, now)
	w := &watcher{options: &Options{Offset: offset}, state: &state{Meta: Meta{Raise: &raise{Offset: offset.Current()}}}}
	w.raiseOffset(uint64(now().UnixNano()))
	if got, want := offset.Capture(), uint64(1_800_000_000)<<20; got != want {
		t.Errorf("the offset is %d, want the time, %d", got, want)
	}
}
