package app

import (
	"runtime"
	"testing"
	"time"
)

func TestPace(t *testing.T) {
	for live, want := range map[uint64]int{0: 400, 1 << 20: 400, 4 << 20: 400, 8 << 20: 200, 32 << 20: 50, 40 << 20: 40, 1 << 30: 40} {
		if got := pace(live); got != want {
			t.Errorf("%d bytes: got %d, want %d", live, got, want)
		}
	}
	if liveHeap() == 0 {
		runtime.GC()
		if liveHeap() == 0 {
			t.Error("the runtime does not tell what lives")
		}
	}
}

func TestAfterCollection(t *testing.T) {
	called := make(chan struct{}, 100)
	afterCollection(func() {
		select {
		case called <- struct{}{}:
		default: // of the collections to come
		}
	})
	for range 3 {
		runtime.GC()
		select {
		case <-called:
		case <-time.After(10 * time.Second):
			t.Fatal("not called")
		}
	}
}

func TestQuiet(t *testing.T) {
	var q quiet
	for i, step := range []struct {
		allocated, live uint64
		want            bool
	}{
		{10 << 20, 0, false},  // the start
		{10 << 20, 0, false},  // quiet, but not worth it
		{200 << 20, 0, false}, // busy
		{200 << 20, 0, true},
		{200 << 20, 0, false}, // once
		{201 << 20, 0, false},
		{300 << 20, 0, false},
		{400 << 20, 0, false},
		{400<<20 + 1000, 1 << 30, false}, // not worth it, with so much alive
		{400<<20 + 2000, 100 << 20, true},
	} {
		if got := q.observe(step.allocated, step.live); got != step.want {
			t.Errorf("step %d: got %v", i, got)
		}
	}
}
