package pipeline

import (
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// madeLog is a log that makes each entry when it is read: it takes no memory.
type madeLog struct {
	make    func(seq uint64) *delta.Delta
	written atomic.Uint64
}

func (*madeLog) Commit() {}

func (l *madeLog) Read(from uint64, maxBytes int) (entries []delta.Entry, err error) {
	for bytes := int64(0); from < l.written.Load() && bytes < int64(maxBytes); from++ {
		e := delta.Entry{Seq: from, Delta: l.make(from)}
		bytes += e.Delta.Size()
		entries = append(entries, e)
	}
	return entries, nil
}

func (l *madeLog) commit(p *Pipeline) {
	for _, e := range p.Capture().Append {
		l.written.Store(max(l.written.Load(), e.Seq+1))
	}
	p.Committed(int64(l.written.Load()))
}

// TestMoreObjectsAreRefusedThanMemoryHolds has so many objects with long names whose records are refused that not even their names fit into
// the backlog. It keeps to its bound, and what is taken of another namespace then arrives all the same.
func TestMoreObjectsAreRefusedThanMemoryHolds(t *testing.T) {
	const refused, memory = 80_000, 16 << 20
	log := &madeLog{make: func(seq uint64) *delta.Delta {
		namespace, name := "refused", strings.Repeat("r", 240)
		if seq >= refused || seq%10 == 0 {
			namespace, name = "good", "good"
		}
		object, err := delta.NewObject(fmt.Appendf(nil,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"%s%d","namespace":%q,"uid":"54b2c5a4-3f0c-4d1a-9a2e-0c6f4c7d1b11","resourceVersion":"%d"}}`,
			name, seq, namespace, seq+1))
		if err != nil {
			t.Fatal(err)
		}
		return &delta.Delta{Type: delta.Modified, Resource: pods, Watch: "w", Object: object, Observed: time.Now()}
	}}
	sink := &script{}
	sink.set(func(_ int, batch []sinks.Record) error {
		errs := make([]error, len(batch))
		for n, r := range batch {
			if strings.Contains(r.Key, "/refused/") {
				errs[n] = errDown
			}
		}
		return &sinks.BatchError{Errs: errs}
	})
	heap := func() int64 {
		runtime.GC()
		runtime.GC() // what pools hold
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	p := start(t, sink, &letters{}, func(o *Options) {
		o.Log, o.Spill, o.MaxBytes, o.MaxDiskBytes, o.Limits.MaxRecords = log, true, memory, 1<<40, 500
		o.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
	})
	take := func(from, to uint64) {
		for seq := from; seq < to; seq++ {
			mustTake(t, p, log.make(seq))
			if seq%1000 == 999 {
				log.commit(p)
			}
		}
	}
	take(0, refused)
	eventually(t, "memory is taken by what is refused", func() bool {
		log.commit(p)
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.parkedFull() && p.log.behind > 0 && !p.readable()
	})
	const more = 100
	take(refused, refused+more)
	eventually(t, "the others arrive", func() bool {
		log.commit(p)
		arrived := 0
		for _, id := range sink.storedIDs() {
			var version int
			if _, _ = fmt.Sscan(strings.Split(id, "/")[2], &version); version > refused {
				arrived++
			}
		}
		return arrived == more
	})
	if took := heap() - before; took > memory+freeHeads+16<<20 {
		t.Errorf("it takes %d bytes, and counts %d", took, p.Stats().Bytes)
	}
}
