package app

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// Go's collector lets the heap double between two collections, whatever its size: too often for the few MiB of a quiet
// kubeferry, and too much room for the known sets of a large cluster. Here it gets leastRoom, or roomShare of what lives,
// whichever is more. docs/performance.md has the effect.
const (
	leastRoom = 16 << 20
	roomShare = 40 // percent
)

// tuneCollector sets the collector's pace to that, and sets it again after each collection. GOGC in the environment overrides it.
// GOMEMLIMIT is usually the container's limit, as in deploy/base. An eighth of it is left to what Go does not count.
func tuneCollector() {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		debug.SetMemoryLimit(limit - limit/8)
	}
	if os.Getenv("GOGC") != "" {
		return
	}
	now := pace(0)
	debug.SetGCPercent(now)
	afterCollection(func() {
		if next := pace(liveHeap()); next != now { // setting it stops the world
			debug.SetGCPercent(next)
			now = next
		}
	})
}

// pace is GOGC for a heap of which so many bytes live. Go counts less than 4 MiB as 4 MiB, times GOGC/100.
func pace(live uint64) int {
	const least = 4 << 20
	const step = 10
	return max(roomShare, int(leastRoom*100/max(live, least))/step*step)
}

func liveHeap() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// afterCollection runs f after each collection, in a goroutine of the runtime. Each collection finds an object without references, and
// runs its finalizer, which makes the next one.
func afterCollection(f func()) {
	type unreferenced struct{ _ [16]byte }
	var again func(*unreferenced)
	again = func(n *unreferenced) {
		f()
		runtime.SetFinalizer(n, again)
	}
	runtime.SetFinalizer(&unreferenced{}, again)
}
