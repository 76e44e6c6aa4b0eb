package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Whatever changes of refused objects and gaps wait in memory and in the log, in whatever order, whether or not commits fail and the
// process is restarted or killed, and whether or not so many fail that their namespace is stopped: the changes of all others
// arrive, and in the end all of them, in order per object.
func TestModelOfRefusedObjects(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rapid.SyncTest(rt, func(rt *rapid.T) {
			sink, b := &script{}, newLogbook()
			refuse := refuseBad(rapid.Bool().Draw(rt, "per record"))
			sink.set(refuse)
			if rapid.Bool().Draw(rt, "away") {
				sink.set(func(int, []sinks.Record) error { return errDown })
			}
			maxBytes := int64(rapid.SampledFrom([]int{32 << 10, 64 << 10, 256 << 10}).Draw(rt, "memory"))
			limits := sinks.Limits{
				MaxRecords: rapid.SampledFrom([]int{1, 5, 100}).Draw(rt, "records"), MaxBytes: 1 << 20,
				Concurrency: rapid.IntRange(1, 4).Draw(rt, "concurrency"), Timeout: time.Second,
			}
			var p *Pipeline
			var stop func()
			run := func() {
				p, stop = launch(sink, &letters{}, func(o *Options) {
					spilling(b, maxBytes, 1<<30)(o)
					o.Retry = Retry{Initial: 10 * time.Millisecond, Max: 10 * time.Second}
					o.Limits = limits
				})
			}
			run()
			defer func() { stop() }()
			var good, all []string
			refusedIn, namespaceOf := map[string]int{}, map[string]string{}
			var fresh []func() error // what no commit has secured, again
			onDisk := 0              // how much of it a commit that failed wrote all the same
			hand := func(over func() error) {
				if err := over(); err != nil {
					rt.Fatal(err)
				}
				fresh = append(fresh, over)
			}
			commit := func() {
				if b.commit(p) {
					fresh, onDisk = nil, 0
				} else if b.lies {
					onDisk = len(fresh)
				}
			}
			take := func(namespace, name string, size int) (id string) {
				d := largeChange(t, name, len(all)+1, size)
				d = inNamespace(t, d, namespace)
				hand(func() error { return p.Delta(context.Background(), d) })
				all = append(all, d.ID("c"))
				namespaceOf[d.ID("c")] = namespace
				return d.ID("c")
			}
			gaps := map[string]int{} // how many changes there were before each
			for round := range rapid.IntRange(1, 4).Draw(rt, "rounds") {
				if rapid.Bool().Draw(rt, "gap") {
					gap := &delta.Gap{Watch: "w", Resource: pods, From: fmt.Sprint(round), To: fmt.Sprint(round + 1), Observed: time.Now()}
					hand(func() error { return p.Gap(context.Background(), gap) })
					gaps[gap.ID("c")] = len(all)
				}
				objects, refused := rapid.IntRange(1, 100).Draw(rt, "objects"), rapid.Bool().Draw(rt, "refused")
				namespace := rapid.SampledFrom([]string{"shop", "tenant", "other", ""}).Draw(rt, "namespace")
				for range rapid.IntRange(1, 100).Draw(rt, "changes") {
					size := rapid.SampledFrom([]int{1, 1000, 5000}).Draw(rt, "size")
					if refused {
						refusedIn[namespace]++
						take(namespace, fmt.Sprint("bad-", namespace, len(all)%objects), size)
					} else {
						good = append(good, take(namespace, fmt.Sprint("good-", namespace, len(all)%objects), size))
					}
				}
				switch rapid.SampledFrom([]string{"takes all", "takes all", "is full", "lies", "is not written"}).Draw(rt, "disk") {
				case "takes all":
					commit()
				case "is full":
					b.set(true, nil)
					commit()
				case "lies":
					b.lie()
					commit()
				}
				switch rapid.SampledFrom([]string{"goes on", "goes on", "restarts", "is killed"}).Draw(rt, "process") {
				case "restarts":
					stop()
					b.set(false, nil)
					commit()
					run()
				case "is killed":
					stop()
					b.set(false, nil)
					again := fresh[onDisk:]
					fresh, onDisk = nil, 0
					run()
					for _, over := range again {
						hand(over)
					}
				}
				b.set(false, nil)
				time.Sleep(time.Duration(rapid.IntRange(0, 3000).Draw(rt, "ms")) * time.Millisecond)
			}
			check := func() {
				commit()
				if s := p.Stats(); !s.Balanced() || s.Bytes > maxBytes+maxBuffered || len(sink.overlapping()) > 0 {
					rt.Fatalf("%+v, overlaps %v", s, sink.overlapping())
				}
			}
			sink.set(refuse)
			// With so little memory, a flow with few refused objects may be stopped.
			good = slices.DeleteFunc(good, func(id string) bool { return refusedIn[namespaceOf[id]] > 0 })
			for n := 0; ; n++ { // beside new ones, without which a sink that refuses all that is left looks as if it were away
				stored := sink.storedIDs()
				missing := slices.DeleteFunc(slices.Clone(good), func(id string) bool { return slices.Contains(stored, id) })
				if len(missing) == 0 {
					break
				}
				if n == 20*60 {
					rt.Fatalf("%d of %d good ones are missing, as %v; %+v", len(missing), len(good), missing[0], p.Stats())
				}
				take("works", fmt.Sprint("new-", n), 1)
				time.Sleep(50 * time.Millisecond)
				check()
			}
			sink.set(nil)
			for deadline := time.Now().Add(time.Minute); p.Stats().Waiting > 0 && time.Now().Before(deadline); check() {
				time.Sleep(50 * time.Millisecond)
			}
			settled(t, p, b)
			stored := sink.storedIDs()
			for gap, before := range gaps {
				if !slices.Contains(stored, gap) {
					rt.Fatalf("%s is not in %q, and was taken behind %d changes", gap, stored, before)
				}
			}
			stored = slices.DeleteFunc(stored, func(id string) bool { return strings.HasSuffix(id, "/GAP") })
			checkOrder(t, stored)
			slices.Sort(stored)
			stored = slices.Compact(stored) // what was sent before a kill may come once more
			slices.Sort(all)
			if !slices.Equal(stored, all) {
				rt.Fatalf("got %d records of %d", len(stored), len(all))
			}
		})
	})
}

// refuseBad refuses the records of objects named bad-…, or the whole calls with such a record.
func refuseBad(perRecord bool) func(int, []sinks.Record) error {
	return func(_ int, batch []sinks.Record) error {
		time.Sleep(time.Millisecond)
		errs := make([]error, len(batch))
		for n, record := range batch {
			if strings.Contains(record.Key, "/bad-") {
				if !perRecord {
					return errDown
				}
				errs[n] = errDown
			}
		}
		return &sinks.BatchError{Errs: errs}
	}
}
