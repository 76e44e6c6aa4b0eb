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
