package pipeline

import (
	"cmp"
	"hash/maphash"
	"slices"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// maxFirsts is how many candidates of a namespace remain once there are twice as many, and every second one is forgotten: objects of
// one namespace that fill the log take neither all of the memory nor the turns of others.
const maxFirsts = 1000

// scan is what is known of the log beyond the cursor. Only the reader of the log uses it.
type scan struct {
	// end is up to where the log was scanned.
	end uint64
	// firsts are the first deltas of objects there, and the first notices of watches, in order. waiting are those that cannot be
	// sent at present: they are in flight, or something of their object or watch is in memory. kept counts both by namespace.
	firsts, waiting []scanned
	kept            map[string]int
	draws           int
	noneUntil       time.Time // none of firsts may be sent, but for what has changed since
	// seen has four bits for each object there. Who shares them with others is no candidate of this scan.
	seen *[1 << 18]uint64
	seed maphash.Seed
	// noticed are the watches with a notice there: all of such a watch waits for it.
	noticed map[string]bool
	// stale is set if what was passed because of a notice, or of what was left behind, may be sent now.
	stale bool
	// begun is when the scan began, until is how much was written then, took is how long the log was read for it, and successes are those
	// until it began.
	begun     time.Time
	until     uint64
	took      time.Duration
	successes uint64
}

// againAfter is how long after its begin a scan is repeated: so often that it takes a twentieth of the time. Of each object it finds one
// change, so that is how often each may change while the cursor stands still.
func (s *scan) againAfter() time.Duration { return max(time.Second/4, 20*s.took) }

// mark takes note of an object, and reports whether it was noted before.
func (s *scan) mark(object delta.Ref) (before bool) {
	before = true
	hash := maphash.Comparable(s.seed, object)
	at, step := hash>>32, hash|1
	for range 4 {
		word, bit := &s.seen[at/64%uint64(len(s.seen))], uint64(1)<<(at%64)
		before = before && *word&bit != 0
		*word |= bit
		at += step
	}
	return before
}

func newScan(from uint64) scan {
	return scan{end: from, kept: map[string]int{}, seen: new([1 << 18]uint64), seed: maphash.MakeSeed(), noticed: map[string]bool{}}
}

type scanned struct {
	seq       uint64
	namespace string // whose turn it is
}

// note takes note of entries that were read from the end of the scan on, up to a number, but for those that are taken. Behind a
// notice, nothing of its watch may be sent before it.
func (s *scan) note(entries []delta.Entry, written uint64, taken map[uint64]bool) {
	for _, e := range entries {
		if e.Seq >= written {
			break
		}
		s.end = e.Seq + 1
		if taken[e.Seq] { // and settled: a commit will remove it
			continue
		}
		i := newItem(e)
		behindNotice := s.noticed[i.watch]
		s.noticed[i.watch] = behindNotice || i.notice()
		if seen := !i.notice() && s.mark(i.ref); !seen && !behindNotice && e.Unsendable == "" {
			s.keep(scanned{e.Seq, i.namespace()})
		}
	}
	if len(entries) == 0 || entries[len(entries)-1].Seq >= written {
		s.end = written
	}
}

// keep adds a candidate. Of a namespace with too many, every second one is forgotten.
func (s *scan) keep(one scanned) {
	s.firsts = append(s.firsts, one)
	s.kept[one.namespace]++
	if s.kept[one.namespace] <= 2*maxFirsts {
		return
	}
	odd := false
	s.firsts = slices.DeleteFunc(s.firsts, func(other scanned) bool {
		if other.namespace != one.namespace {
			return false
		}
		if odd = !odd; odd {
			s.kept[one.namespace]--
		}
		return odd
	})
}

// comeBack puts those that were waiting among the candidates again: now and then, and when there are no others.
func (s *scan) comeBack() {
	if s.draws++; s.draws%maxDraws == 0 || len(s.firsts) == 0 {
		s.firsts = append(s.firsts, s.waiting...)
		s.waiting = nil
		slices.SortFunc(s.firsts, func(a, b scanned) int { return cmp.Compare(a.seq, b.seq) })
	}
}

// forgetLeft forgets the candidates of namespaces that were left behind.
func (s *scan) forgetLeft(left map[string]*leftBehind) {
	if len(left) == 0 {
		return
	}
	s.firsts = slices.DeleteFunc(s.firsts, func(one scanned) bool {
		_, is := left[one.namespace]
		if is {
			s.kept[one.namespace]--
		}
		return is
	})
}
