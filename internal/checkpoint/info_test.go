package checkpoint

import "testing"

// Who stands for election reads what a copy holds, and must not wait while it is compacted.
func TestInfoBesideAnApply(t *testing.T) {
	r := &Replica{}
	r.mu.Lock() // as Apply does
	defer r.mu.Unlock()
	r.info.Store(&Info{Offset: 3})
	if got := r.Info(); got.Offset != 3 {
		t.Errorf("got %+v", got)
	}
}
