package flow

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkHealthy is the scheduler's cost of a record if all are delivered: of 1,000 objects in 30 namespaces.
func BenchmarkHealthy(b *testing.B) {
	for _, records := range []int{100, 1} {
		b.Run(fmt.Sprint(records), func(b *testing.B) {
			s := New(Options{Records: records, Calls: 8, Share: NewSlots(8).Share(nil), Initial: time.Second, Max: time.Second, Random: func() float64 { return 0 }})
			items := make([]Item, 1000)
			for k := range items {
				flow := fmt.Sprint("ns", k%30)
				items[k] = Item{Ref: ref(flow, fmt.Sprint(k)), Flow: flow}
			}
			results := make([]Result, records)
			now := epoch
			b.ReportAllocs()
			for n := 0; n < b.N; n += len(items) {
				for k := range items {
					s.Add(&items[k], now)
				}
				for {
					batch, _ := s.Next(now, all)
					if batch == nil {
						break
					}
					now = now.Add(time.Millisecond)
					s.Judge(batch, results[:len(batch.Items)], time.Millisecond, now)
					s.Done(batch, now)
				}
			}
		})
	}
}
