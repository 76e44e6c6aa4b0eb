package source

import (
	"fmt"
	"runtime"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// BenchmarkKnownSet is a first state of many objects and then a change of each, committed every 5,000: what one takes of time, and
// the first of memory: without and with a previous version beyond what memory has room for, and with names of 250 bytes.
func BenchmarkKnownSet(b *testing.B) {
	const count = 300_000
	for _, of := range []struct{ name, previous int }{{9, 0}, {9, 200}, {250, 0}} {
		b.Run(fmt.Sprintf("name=%d,previous=%d", of.name, of.previous), func(b *testing.B) {
			var packed []byte
			if of.previous > 0 {
				packed = make([]byte, of.previous)
			}
			text := func(i, version int) []byte {
				return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"o-%0*d","namespace":"tenant","uid":%q,"resourceVersion":"%d"}}`,
					of.name-2, i, uuid.NewUUID(), version)
			}
			objects := make([]*delta.Object, 2*count)
			for i := range objects {
				var err error
				if objects[i], err = delta.NewObject(text(i%count, 1_000_000+i)); err != nil {
					b.Fatal(err)
				}
			}
			heap := func() float64 {
				runtime.GC()
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				return float64(m.HeapAlloc)
			}
			for b.Loop() {
				b.StopTimer()
				k := newKnownSet(true, NewPreviousVersions(1<<20))
				before := heap()
				pass := func(objects []*delta.Object) {
					for i, o := range objects {
						k.put(o, views{}, packed)
						if i%5000 == 4999 {
							k.capture()
							k.committed()
						}
					}
				}
				b.StartTimer()
				pass(objects[:count])
				b.StopTimer()
				b.ReportMetric((heap()-before)/count, "bytes/object")
				b.StartTimer()
				pass(objects[count:])
				runtime.KeepAlive(k)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2/count, "ns/put")
			runtime.KeepAlive(objects)
		})
	}
}
