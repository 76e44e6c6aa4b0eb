package pipeline

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	sched "github.com/kubeferry/kubeferry/pipeline/flow"
)

// Two pipelines share a sink, and the records of one hang: the other waits for the first slot for a time-out at most, and is
// not held up after that. Its waits are no attempts, no errors, and no reason to blame the sink.
func TestHangingPipelineLeavesSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := &tenants{bad: hang, took: map[string]time.Time{}, latency: 5 * time.Millisecond}
		slots := sched.NewSlots(2)
		share := func(o *Options) {
			tenantLimits(1, 2)(o)
			o.Slots, o.Retry.Attempts = slots, 1
		}
		hanging, stopHanging := launch(sink, &letters{}, share)
		defer stopHanging()
		for n := range 200 {
			mustTake(t, hanging, change(t, fmt.Sprint("bad-", n), n+1))
		}
		synctest.Wait() // it holds both slots

		dead := &letters{}
		p, stop := launch(sink, dead, share)
		defer stop()
		sent := map[string]time.Time{}
		for n := range 20 * 60 {
			name := fmt.Sprint("good-", n)
			sent[name] = time.Now()
			mustTake(t, p, change(t, name, 10_000+n))
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(time.Second)
		waits := sink.waits(t, sent)
		if last := waits[len(waits)-1]; last > callTimeout+time.Second {
			t.Errorf("a change took %v", last)
		}
		if median := waits[len(waits)/2]; median > time.Second {
			t.Errorf("half of the changes took more than %v", median)
		}
		if s := p.Stats(); len(dead.ids()) > 0 || s.LastError != "" {
			t.Errorf("got %d dead letters and the error %q, want none", len(dead.ids()), s.LastError)
		}
	})
}

// A pipeline that is stopped while it waits for a slot has failed in nothing.
func TestStoppedWhileWaitingForSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slots := sched.NewSlots(1)
		other := slots.Share(nil)
		if err := other.Acquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		sink, dead := &script{}, &letters{}
		p, stop := launch(sink, dead, func(o *Options) {
			o.Slots, o.Retry.Attempts = slots, 1
		})
		mustTake(t, p, change(t, "a", 1))
		time.Sleep(time.Hour)
		stop()
		if s := p.Stats(); sink.calls > 0 || len(dead.ids()) > 0 || s.LastError != "" || s.Waiting != 1 {
			t.Errorf("got %d calls, %d dead letters, the error %q and %d changes waiting, want one change waiting",
				sink.calls, len(dead.ids()), s.LastError, s.Waiting)
		}
	})
}
