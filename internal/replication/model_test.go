package replication_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/replication"
)

// held is what a replica has beside its claim: of the changes of an object, which are numbered, up to which they were read and acknowledged
// by the sink (those between wait in its log), and the offset.
type held struct {
	read, acked int
	offset      uint64
}

// process is one replica in the model.
type process struct {
	*candidate
	commit  held // its last commit
	now     held // as a leader: what goes into the next one
	leading bool
	named   bool              // as a leader: the Lease has named a commit of its term
	copied  replication.Claim // as a leader: the newest that a standby has
}

func (p *process) try() bool {
	held := p.candidate.try()
	p.named = p.named || held && p.leading
	return held
}

// sink is what receives changes. It checks the promise.
type sink struct {
	arrived int // up to this change
	// offset is that of what came last.
	offset uint64
	// unnamed is set from when the Lease is deleted or restored until a leader renews it: what is sent meanwhile it does not name.
	unnamed bool
}

// take is called with a change, or with the last one of a gap.
func (s *sink) take(t *rapid.T, p *process, change int, gap bool) {
	switch {
	case !p.named:
		t.Fatalf("%s sends change %d, and the Lease has named no commit of its term", p.name, change)
	case change > s.arrived+1 && !gap:
		t.Fatalf("%s sends change %d behind %d: what is between is lost, or comes late", p.name, change, s.arrived)
	case p.now.offset < s.offset:
		t.Fatalf("%s sends change %d with the offset %d, and %d was used", p.name, change, p.now.offset, s.offset)
	}
	s.arrived = max(s.arrived, change)
	if !s.unnamed {
		s.offset = p.now.offset
	}
}

// TestModel is the protocol: whatever happens to processes, API server, network and Lease,
//
//   - no two processes may deliver at the same time,
//   - the first arrivals of an object's changes are in order and without a hole, but for those behind a gap record,
//   - the offset does not go back, as long as the Lease is there, which names it,
//   - nothing is sent before the Lease names a commit of the leader's term,
//   - in the end one leads, and all changes have arrived,
//   - a term has one leader,
//   - each leader finds in the Lease what the last one named that had a commit, or has that: however many ended before they had one,
//   - a replica takes the Lease only when that has not changed for as long as the one rule says: the duration, unless it was given up, and
//     staleWait if the replica is older than the Lease, or five minutes if it is empty (candidate.try checks that).
//
// A process tries for the Lease whenever the model lets it: that it is slow, frozen or cut off is that it does not.
func TestModel(t *testing.T) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // histories are short, and what is wrong in few of them is rare
		if err := flag.Set(f.Name, "300"); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld()
		var processes []*process
		made, changes, forgotten := 0, 0, 0 // forgotten is up to which change the API server gives none
		var receiver sink
		text := func(c replication.Claim) string {
			return fmt.Sprintf("%s %d/%d", c.Lineage, c.Term, c.Commit)
		}
		named, namedBy := text(replication.Claim{}), "" // by the last leader that had a commit, or by the first of a new Lease
		name := func(p *process, holder string) {
			if l := w.lease; l != nil && *l.Spec.HolderIdentity == holder && (p.leading || named == text(replication.Claim{})) {
				namedBy = p.name
				named = l.Annotations["kubeferry.dev/lineage"] + " " + l.Annotations["kubeferry.dev/commit"]
			}
		}
		var backup *coordinationv1.Lease
		namedThen := named
		terms := map[uint64]string{}
		start := func(claim replication.Claim, commit held) *process {
			made++
			p := &process{commit: commit}
			lasts := 25 * time.Second
			// Who has not read a Lease cannot know that another counts on it for longer: here, all have.
			if len(terms) == 0 || !w.away && w.lease != nil && *w.lease.Spec.HolderIdentity != "" {
				lasts = rapid.SampledFrom([]time.Duration{duration, lasts}).Draw(t, "the Lease lasts")
			}
			p.candidate = w.candidateWith(fmt.Sprint("p", made), claim, lasts)
			own := p.candidate
			p.Lease = replication.NewLease(replication.LeaseOptions{
				Client: &w.leases, Name: "l", Identity: own.name, Cluster: "c", Duration: lasts, StaleWait: 30 * time.Second,
				Claim: func() replication.Claim {
					if p.leading && p.copied != (replication.Claim{}) {
						return p.copied
					}
					return own.claim
				},
				Offset: func() uint64 { return max(p.now.offset, p.commit.offset) },
				Now: func() time.Time {
					w.now = w.now.Add(time.Microsecond) // what two processes do takes time, and the clock is in the term
					return w.now
				},
			})
			_ = p.Read(t.Context())
			return p
		}
		for range rapid.IntRange(2, 3).Draw(t, "processes") {
			processes = append(processes, start(replication.Claim{}, held{}))
		}
		pick := func(t *rapid.T) *process { return rapid.SampledFrom(processes).Draw(t, "process") }
		edited := func(t *rapid.T) {
			if w.away || w.lease == nil {
				t.Skip("there is none")
			}
			for _, p := range processes {
				if !p.leading && *w.lease.Spec.LeaseDurationSeconds > int32(p.lasts/time.Second) {
					_ = p.Read(t.Context())
				}
			}
		}
		leader := func(t *rapid.T) *process {
			for _, p := range processes {
				if p.leading && p.Left() > 0 {
					return p
				}
			}
			t.Skip("none leads")
			return nil
		}
		begin := func(t *rapid.T, p *process) {
			status := p.Status()
			if other, taken := terms[status.Term]; taken {
				t.Fatalf("%s and %s lead in term %d", other, p.name, status.Term)
			}
			terms[status.Term] = p.name
			// The answer may have been lost to the update by which it took the Lease, and named something.
			if text(status.Before) != named && text(p.claim) != named && namedBy != p.name {
				t.Fatalf("%s finds %q in the Lease, and %q was named", p.name, text(status.Before), named)
			}
			if p.claim.Lineage == "" {
				p.claim = replication.Claim{Lineage: "l" + p.name}
				p.commit = held{} // a snapshot and, where there was a leader, gap records
			}
			p.leading, p.now = true, p.commit
			p.now.offset = max(p.now.offset, status.Offset)
			p.claim.Term, p.claim.Commit = status.Term, p.claim.Commit+1
			if !rapid.Bool().Draw(t, "its first commit takes long") {
				p.try() // names it
			}
		}
		taken := func(t *rapid.T, p *process) {
			if !rapid.Bool().Draw(t, "ends before its first commit") {
				begin(t, p)
				return
			}
			p.try()
			name(p, p.name)
			if rapid.Bool().Draw(t, "gives the Lease up") {
				p.releaseOnce()
			}
			processes = append(remove(processes, p), start(p.claim, p.commit))
		}
		commit := func(p *process) {
			p.commit = p.now
			p.claim.Commit++
		}
		// send sends the next change. It was read before, or is read now, if the API server still has it: else a gap record says so.
		send := func(t *rapid.T, p *process) {
			next := p.now.acked + 1
			gap := next > p.now.read && next <= forgotten
			if gap {
				next = forgotten
			}
			if next > changes {
				return
			}
			p.now.read = max(p.now.read, next)
			receiver.take(t, p, next, gap)
			if rapid.IntRange(0, 3).Draw(t, "the answer is lost") > 0 {
				p.now.acked = next
			}
		}
		try := func(t *rapid.T) {
			p := pick(t)
			if p.Status().Err != nil {
				t.Skip("it has ended")
			}
			held := p.try()
			if held && !p.leading {
				taken(t, p)
			}
			if p.leading && held {
				receiver.unnamed = false
			}
		}
		copyTo := func(p, standby *process) {
			standby.claim, standby.commit = p.claim, p.commit
			p.copied = p.claim
		}
		// Most of what may go wrong does so around a leader with a standby.
		for !processes[0].try() {
			w.now = w.now.Add(time.Second)
		}
		begin(t, processes[0])
		copyTo(processes[0], processes[1])
		for _, p := range processes[1:] {
			p.try()
		}
		t.Repeat(map[string]func(*rapid.T){
			"time passes": func(t *rapid.T) {
				w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{1, 1, 3, 12, 45, 400}).Draw(t, "seconds")) * time.Second)
			},
			"a process tries":   try,
			"another one tries": try,
			"one waits for it": func(t *rapid.T) {
				p := pick(t)
				for range rapid.SampledFrom([]int{5, 11, 45, 320}).Draw(t, "seconds") {
					if p.Status().Err == nil && !p.leading && p.try() {
						if taken(t, p); p.leading {
							receiver.unnamed = false
						}
						return
					}
					name(p, p.name) // its answer may be lost
					w.now = w.now.Add(time.Second)
				}
			},
			"there is a change":    func(*rapid.T) { changes++ },
			"history is forgotten": func(*rapid.T) { forgotten = changes },
			"a change is sent":     func(t *rapid.T) { send(t, leader(t)) },
			"another one is sent":  func(t *rapid.T) { send(t, leader(t)) },
			"the leader reads":     func(t *rapid.T) { leader(t).readAll(changes, forgotten) },
			"the leader commits":   func(t *rapid.T) { commit(leader(t)) },
			"the offset is raised": func(t *rapid.T) { leader(t).now.offset += 1000 },
			"a standby has the last commit": func(t *rapid.T) {
				p, standby := leader(t), pick(t)
				if standby.leading {
					t.Skip("it leads")
				}
				copyTo(p, standby)
			},
			"all see the leader renew": func(t *rapid.T) {
				p := leader(t)
				for range rapid.SampledFrom([]int{5, 45}).Draw(t, "seconds") {
					if w.now = w.now.Add(time.Second); !p.try() {
						return
					}
					receiver.unnamed = false
					for _, other := range processes {
						_ = other.Read(t.Context())
					}
				}
			},
			"the standbys are gone": func(t *rapid.T) { leader(t).copied = replication.Claim{} },
			"the leader hands over": func(t *rapid.T) {
				p := leader(t)
				commit(p)
				p.copied = replication.Claim{}
				p.releaseOnce() // it ends even so
				name(p, "")
				processes = remove(processes, p)
				processes = append(processes, start(p.claim, p.commit))
			},
			"a process dies": func(t *rapid.T) {
				p := pick(t)
				claim, commit := p.claim, p.commit
				if rapid.Bool().Draw(t, "with its disk") {
					claim, commit = replication.Claim{}, held{}
				}
				processes = append(remove(processes, p), start(claim, commit))
			},
			"the API server goes and comes": func(*rapid.T) { w.away = !w.away },
			"the next answer is lost":       func(*rapid.T) { w.lostAnswer = true },
			"the Lease is deleted": func(t *rapid.T) {
				edited(t)
				w.lease, named = nil, text(replication.Claim{})
				receiver = sink{arrived: receiver.arrived, unnamed: true}
			},
			"etcd is backed up": func(*rapid.T) { backup, namedThen = w.lease, named },
			"etcd is restored": func(*rapid.T) {
				w.now = w.now.Add(time.Minute) // it takes longer than a Lease is valid
				receiver = sink{arrived: receiver.arrived, unnamed: true}
				if w.lease, named = backup, namedThen; w.lease != nil {
					w.edit(func(*coordinationv1.Lease) {})
				}
			},
			"the Lease is taken by hand": func(t *rapid.T) {
				edited(t)
				name := rapid.SampledFrom([]string{"", "somebody", processes[len(processes)-1].name}).Draw(t, "holder")
				w.edit(func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = &name })
			},
			"": func(t *rapid.T) {
				var may []string
				for _, p := range processes {
					name(p, p.name)
					if p.Left() > 0 {
						may = append(may, p.name)
					}
				}
				if len(may) > 1 {
					t.Fatalf("%v may deliver at the same time", may)
				}
				if w.lease == nil || receiver.unnamed {
					return
				}
				if offset, _ := strconv.ParseUint(w.lease.Annotations["kubeferry.dev/offset"], 10, 64); offset < receiver.offset {
					t.Fatalf("the Lease names the offset %d, and %d was used", offset, receiver.offset)
				}
			},
		})
		w.away, w.lostAnswer = false, false
		for begun := w.now; receiver.arrived < changes; w.now = w.now.Add(time.Second) {
			if w.now.Sub(begun) > time.Hour {
				t.Fatalf("an hour later %d of %d changes have arrived", receiver.arrived, changes)
			}
			for _, p := range slices.Clone(processes) {
				switch held := p.try(); {
				case p.Status().Err != nil:
					processes = append(remove(processes, p), start(p.claim, p.commit))
				case held && !p.leading:
					begin(t, p)
				case p.leading && p.Left() > 0:
					send(t, p)
				}
			}
		}
	})
}

// readAll reads what the API server has, and what waits goes into the log.
func (p *process) readAll(changes, forgotten int) {
	if p.now.read >= forgotten {
		p.now.read = changes
	}
}

func remove(from []*process, gone *process) []*process {
	var kept []*process
	for _, p := range from {
		if p != gone {
			kept = append(kept, p)
		}
	}
	return kept
}

// releaseOnce gives the Lease up, if the first try succeeds.
func (c *candidate) releaseOnce() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = c.Release(ctx)
}
