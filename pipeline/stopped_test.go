package pipeline

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Once too many objects of a namespace fail, its further changes wait on disk, and those of others do not. Once they get through, all of it
// arrives, in order.
func TestStoppedFlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(refuseBad(true))
		const memory = 4 << 20
		p, stop := launch(sink, &letters{}, func(o *Options) {
			tenantLimits(100, 8)(o)
			spilling(b, memory, 1<<30)(o)
		})
		defer stop()
		endCommits := b.commits(p, 200*time.Millisecond)
		defer endCommits()
		version, others := 0, 0
		other := func() {
			version++
			others++
			mustTake(t, p, changeIn(t, fmt.Sprint("other-", others%10), fmt.Sprint("good-", others), version))
			time.Sleep(10 * time.Millisecond)
		}
		for n := range 3000 { // 9 MB, of 600 objects
			version++
			mustTake(t, p, inNamespace(t, largeChange(t, fmt.Sprint("bad-", n%600), version, 3000), "tenant"))
			if n%10 == 0 {
				other()
			}
		}
		for range 500 {
			other()
		}
		time.Sleep(5 * time.Second)
		if got := len(sink.storedIDs()); got != others {
			t.Errorf("%d of %d changes of others arrived", got, others)
		}
		if s := p.Stats(); s.OnDisk < 1000 || s.Bytes > memory/2 {
			t.Errorf("the tenant has %d changes on disk, and %d bytes are in memory", s.OnDisk, s.Bytes)
		}
		sink.set(nil)
		time.Sleep(2 * time.Minute)
		endCommits()
		settled(t, p, b)
		checkOrder(t, sink.storedIDs())
		if got := len(sink.storedIDs()); got != version {
			t.Errorf("%d of %d changes arrived", got, version)
		}
	})
}

// Another run goes on counting the attempts of a record.
func TestAttemptsSurviveARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(refuseBad(true))
		run := func() (*Pipeline, func()) {
			p, stop := launch(sink, &letters{}, spilling(b, 1<<20, 1<<30))
			return p, stop
		}
		p, stop := run()
		d := change(t, "bad-1", 1)
		mustTake(t, p, d)
		mustTake(t, p, change(t, "good", 2))
		b.commit(p)         // before the attempts that follow
		for n := range 50 { // an attempt counts only if something was delivered since the last one
			mustTake(t, p, change(t, "good", n+3))
			time.Sleep(50 * time.Millisecond)
		}
		before := attempts(t, p, d.Ref())
		b.commit(p)
		stop()
		p, stop = run()
		defer stop()
		if after := attempts(t, p, d.Ref()); before.Attempts < 10 || after.Attempts < before.Attempts || !after.FirstFailure.Equal(before.FirstFailure) {
			t.Errorf("%d attempts since %v before, %d since %v after", before.Attempts, before.FirstFailure, after.Attempts, after.FirstFailure)
		}
		sink.set(nil)
		time.Sleep(time.Minute)
		settled(t, p, b)
	})
}

func attempts(t *testing.T, p *Pipeline, ref delta.Ref) WaitingRecord {
	t.Helper()
	w, err := p.Waiting(context.Background(), ref)
	if err != nil || len(w.Records) != 1 {
		t.Fatalf("got %+v, %v", w, err)
	}
	return w.Records[0]
}

// What a snapshot waits for has a name also once it has left memory.
func TestUndeliveredNamesWhatLeftMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink, b := &script{}, newLogbook()
		sink.set(refuseBad(true))
		p, stop := launch(sink, &letters{}, spilling(b, 1<<20, 1<<30))
		defer stop()
		mustTake(t, p, change(t, "good", 1))
		mustTake(t, p, snapshotOf(t, "bad-1", 2))
		time.Sleep(time.Second)
		mustTake(t, p, change(t, "good", 2)) // so that the sink is not to blame
		b.commit(p)
		time.Sleep(time.Second)
		if records, waitsFor := p.Undelivered("w"); records != 1 || !strings.Contains(waitsFor, "bad-1, which waits for its own first record") {
			t.Errorf("%d records wait, for %q", records, waitsFor)
		}
		sink.set(nil)
		time.Sleep(time.Minute)
		settled(t, p, b)
	})
}
