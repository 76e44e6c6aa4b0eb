package pipeline

import (
	"fmt"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// While as many calls of suspect namespaces hang as may, choosing a probe takes time linear in the objects that wait: the pipeline's
// mutex is held meanwhile.
func TestProbeAmongManyRefusedObjects(t *testing.T) {
	pick := func(objects int) time.Duration {
		p, end := unstarted(8)
		defer end()
		for n := range objects {
			mustTake(t, p, changeIn(t, "tenant", fmt.Sprint("bad-", n), n+1))
		}
		p.mu.Lock()
		for _, o := range p.backlog.objects { // as settle leaves them after a call with objects of one namespace
			o.isolated, o.failing = true, true
			p.backlog.setApart(o, true)
		}
		p.aloneCalls.Add("tenant", 4)
		p.apartCalls.Add("tenant", 4)
		p.tripBreaker(&sinks.Error{}, 0, false)
		p.breaker.next = time.Time{}
		p.mu.Unlock()
		before := cpu(t) // other processes may run in between
		b, _ := p.pick()
		took := cpu(t) - before
		if b != nil {
			t.Fatal("an isolated object is sent beside those that hang")
		}
		mustTake(t, p, change(t, "good", 1))
		if b, _ = p.pick(); b == nil || b.items[0].ref.Name != "good" {
			t.Fatal("the object of another namespace is no probe")
		}
		return took
	}
	few, many := time.Hour, time.Hour
	for tries := 1; ; tries++ {
		few, many = min(few, pick(1000)), min(many, pick(8000))
		if many < 24*few {
			return
		}
		if tries == 10 {
			t.Fatalf("%v among 1,000 objects, and %v among eight times as many", few, many)
		}
	}
}

// A batch is no call of a suspect namespace if the object of one that would have begun it has to be read first.
func TestCleanBatchBehindAnUnloadedObject(t *testing.T) {
	p, end := unstarted(8)
	defer end()
	mustTake(t, p, change(t, "good", 1))
	p.mu.Lock()
	o := &objectQueue{ref: changeIn(t, "tenant", "bad", 1).Ref(), flow: &flow{}, unloaded: []unloaded{{}}}
	p.backlog.setApart(o, true)
	p.apart.push(o)
	p.mu.Unlock()
	b, _ := p.pick()
	if b == nil || len(b.items) != 1 || b.items[0].ref.Name != "good" || b.apart || b.suspect {
		t.Errorf("got %+v", b)
	}
}

// What is encoded already keeps no suspect namespace from its probe: probes that failed stay encoded until the sink is back.
func TestProbeBesideMuchThatIsEncoded(t *testing.T) {
	p, end := unstarted(8)
	defer end()
	mustTake(t, p, change(t, "good", 1))
	p.mu.Lock()
	p.backlog.suspects["shop"] = 1
	p.apartCalls.Add("tenant", 1)
	p.budget.encoded = p.options.MaxBytes / 2
	p.tripBreaker(&sinks.Error{}, 0, false)
	p.breaker.next = time.Time{}
	p.mu.Unlock()
	if b, _ := p.pick(); b == nil || b.items[0].ref.Name != "good" {
		t.Error("it is no probe")
	}
}
