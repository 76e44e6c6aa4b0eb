package oracle

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func pods() schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: "pods"}
}

// testOracle has seen this: `old` existed; `web` came, changed twice, went and came back under another uid.
func testOracle(holes ...span) *Oracle {
	w := &watcher{resource: pods()}
	w.history.from = 10
	w.history.snapshot = []state{at("old", "u0", 5)}
	w.history.holes = holes
	w.history.changes = []change{
		{state: at("web", "u1", 11), typ: Added},
		{state: at("web", "u1", 12), typ: Modified},
		{state: at("old", "u0", 13), typ: Modified},
		{state: at("web", "u1", 14), typ: Modified},
		{state: at("web", "u1", 15), typ: Deleted},
		{state: at("web", "u2", 16), typ: Added},
	}
	return &Oracle{cluster: "c", watches: []*watcher{w}}
}

func at(name, uid string, rank uint64) state {
	return state{namespace: "ns", name: name, uid: uid, version: strconv.FormatUint(rank, 10), rank: rank}
}

func rec(name, uid, version, typ string) Record {
	return Record{
		ID: id("c", uid, version, typ), Type: typ, Resource: pods(), Namespace: "ns", Name: name,
		UID: uid, ResourceVersion: version,
	}
}

func snapshotOf(r Record) Record { r.Snapshot = true; return r }
func inferred(r Record) Record   { r.Inferred = true; return r }

func gapOf(from, to string) Record {
	return Record{ID: "c/digest/" + from + "-" + to + "/GAP", Type: Gap, Resource: pods(), From: from, To: to}
}

// perfect is a delivery without fault.
func perfect() []Record {
	return []Record{
		snapshotOf(rec("old", "u0", "5", Added)),
		rec("web", "u1", "11", Added),
		rec("web", "u1", "12", Modified),
		rec("old", "u0", "13", Modified),
		rec("web", "u1", "14", Modified),
		rec("web", "u1", "15", Deleted),
		rec("web", "u2", "16", Added),
	}
}

func TestCompare(t *testing.T) {
	without := func(i ...int) []Record {
		var rest []Record
		for n, r := range perfect() {
			if !slices.Contains(i, n) {
				rest = append(rest, r)
			}
		}
		return rest
	}
	swapped := perfect()
	swapped[2], swapped[4] = swapped[4], swapped[2]
	recreatedEarly := perfect()
	recreatedEarly[5], recreatedEarly[6] = recreatedEarly[6], recreatedEarly[5]
	renamed := perfect()
	renamed[2].ID = "c/u1/12/ADDED"

	gaps := CompareOptions{AllowGaps: true}
	tests := []struct {
		name                                        string
		got                                         []Record
		opts                                        CompareOptions
		missing, unexpected, outOfOrder, duplicates int
	}{
		{name: "perfect", got: perfect()},
		{name: "nothing", missing: 7},
		{name: "missing modification", got: without(2), missing: 1},
		{name: "missing deletion", got: without(5), missing: 1},
		{name: "missing snapshot", got: without(0), missing: 1},
		{name: "optional snapshot", got: without(0), opts: CompareOptions{Snapshot: SnapshotOptional}},
		{name: "forbidden snapshot", got: perfect(), opts: CompareOptions{Snapshot: SnapshotForbidden}, unexpected: 1},
		{name: "reordered", got: swapped, outOfOrder: 1},
		{name: "recreated before deleted", got: recreatedEarly, outOfOrder: 1},
		{name: "duplicate", got: append(perfect(), perfect()[2], perfect()[2]), duplicates: 2},
		{name: "unexpected version", got: append(perfect(), rec("web", "u2", "17", Modified)), unexpected: 1},
		{name: "unexpected deletion", got: append(perfect(), rec("web", "u2", "16", Deleted)), unexpected: 1},
		{name: "unexpected inferred deletion", got: append(perfect(), inferred(rec("web", "u2", "16", Deleted))), opts: gaps, unexpected: 1},
		{name: "unexpected namespace resource", got: append(perfect(), func() Record {
			r := rec("web", "u2", "16", Added)
			r.ID, r.Resource.Resource = "c/x/16/ADDED", "nodes"
			return r
		}()), unexpected: 1},
		{name: "wrong id", got: renamed, missing: 1, unexpected: 1},
		{name: "earlier record", got: append([]Record{rec("old", "u0", "4", Added)}, perfect()...), unexpected: 1},
		{name: "earlier record allowed", got: append([]Record{rec("old", "u0", "4", Added)}, perfect()...), opts: CompareOptions{AllowEarlier: true}},
		{name: "late start", got: append([]Record{snapshotOf(rec("old", "u0", "13", Added))}, perfect()[4:]...), missing: 2},
		{name: "late start with since", got: append([]Record{snapshotOf(rec("old", "u0", "13", Added))}, perfect()[4:]...), opts: CompareOptions{Since: "13"}},
		{name: "snapshot covers what came before", got: append([]Record{
			snapshotOf(rec("old", "u0", "13", Added)), snapshotOf(rec("web", "u1", "12", Added)),
		}, perfect()[4:]...)},
		{name: "a later snapshot excuses nothing", got: append(without(2, 4, 5, 6),
			snapshotOf(rec("web", "u1", "14", Added)), rec("web", "u1", "15", Deleted), rec("web", "u2", "16", Added)), missing: 1},
		{name: "gap forbidden", got: append(perfect(), gapOf("10", "20")), unexpected: 1},
		{name: "net difference of a gap", opts: gaps, got: []Record{
			snapshotOf(rec("old", "u0", "5", Added)), rec("web", "u1", "11", Added), gapOf("11", "16"),
			inferred(rec("old", "u0", "13", Modified)), inferred(rec("web", "u1", "11", Deleted)), inferred(rec("web", "u2", "16", Added)),
		}},
		{name: "a life inside a gap", opts: gaps, got: []Record{
			snapshotOf(rec("old", "u0", "5", Added)), gapOf("10", "16"),
			inferred(rec("old", "u0", "13", Modified)), inferred(rec("web", "u2", "16", Added)),
		}},
		{name: "gap without its deletion", opts: gaps, missing: 1, got: []Record{
			snapshotOf(rec("old", "u0", "5", Added)), rec("web", "u1", "11", Added), gapOf("11", "16"),
			inferred(rec("old", "u0", "13", Modified)), inferred(rec("web", "u2", "16", Added)),
		}},
		{name: "gap without the last state", opts: gaps, missing: 1, got: []Record{
			snapshotOf(rec("old", "u0", "5", Added)), gapOf("10", "16"), inferred(rec("web", "u2", "16", Added)),
		}},
		{name: "missing outside of the gap", opts: gaps, missing: 1, got: append(
			slices.Clone(without(2)[:3]), gapOf("13", "14"), inferred(rec("web", "u1", "14", Modified)), perfect()[5], perfect()[6])},
		{name: "gap from before what was sent", opts: gaps, unexpected: 1, got: append(perfect(), gapOf("15", "20"))},
		{name: "gap from before the snapshot", opts: gaps, unexpected: 1, got: slices.Insert(perfect(), 1, gapOf("4", "10"))},
		{name: "gap of another namespace", opts: gaps, got: append(perfect(), func() Record {
			r := gapOf("15", "20")
			r.Namespace = "other"
			return r
		}())},
		{name: "gap to before its beginning", opts: gaps, unexpected: 1, got: append(perfect(), gapOf("20", "19"))},
		{name: "gap without an end", opts: gaps, unexpected: 1, got: append(perfect(), gapOf("20", ""))},
		{name: "gap to what the server has", opts: CompareOptions{AllowGaps: true, newest: 20}, got: append(perfect(), gapOf("16", "20"))},
		{name: "gap to what the server has not", opts: CompareOptions{AllowGaps: true, newest: 19}, unexpected: 1, got: append(perfect(), gapOf("16", "20"))},
		{name: "told after the gap that holds it", opts: gaps, unexpected: 1, got: slices.Insert(perfect(), 6, gapOf("15", "20"))},
		{name: "inferred after the gap's end", opts: gaps, unexpected: 1, got: append(without(6), gapOf("15", "15"), inferred(perfect()[6]))},
		{name: "inferred before the gap", opts: gaps, unexpected: 1, got: append(without(6), inferred(perfect()[6]), gapOf("16", "16"))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := testOracle().Compare(tt.got, tt.opts)
			if len(r.Missing) != tt.missing || len(r.Unexpected) != tt.unexpected ||
				len(r.OutOfOrder) != tt.outOfOrder || len(r.Duplicates) != tt.duplicates {
				t.Errorf("want %d missing, %d unexpected, %d out of order, %d duplicates; got\n%s",
					tt.missing, tt.unexpected, tt.outOfOrder, tt.duplicates, r)
			}
			if want := tt.missing+tt.unexpected+tt.outOfOrder == 0; r.OK() != want {
				t.Errorf("got OK %t, want %t", r.OK(), want)
			}
		})
	}
}

func lostGap(from, to string) Record {
	r := gapOf(from, to)
	r.Reason = "lost"
	return r
}

func sequenced(r Record, sequence uint64) Record { r.Sequence = sequence; return r }

// What a kubeferry may miss that was killed, and whose history is refused.
func TestCompareLost(t *testing.T) {
	sent := func(more ...Record) []Record { // up to 14, of which it noted no more than 11 when it was killed
		return append(slices.Clone(perfect()[:5]), more...)
	}
	old := inferred(rec("old", "u0", "13", Modified))
	again := inferred(rec("web", "u2", "16", Added))
	gone := func(sequence uint64) Record { return sequenced(inferred(rec("web", "u1", "11", Deleted)), sequence) }
	gaps, lost := CompareOptions{AllowGaps: true}, CompareOptions{AllowGaps: true, AllowLost: true}
	tests := []struct {
		name                                        string
		got                                         []Record
		opts                                        CompareOptions
		missing, unexpected, outOfOrder, unknowable int
	}{
		{name: "allowed", got: sent(lostGap("11", "16"), gone(15), again), opts: lost},
		{name: "forbidden", got: sent(lostGap("11", "16"), gone(15), again), opts: gaps, unexpected: 3},
		{name: "a sequence before what was sent", got: sent(lostGap("11", "16"), gone(11), again), opts: lost, unexpected: 1},
		{name: "a sequence before the deletion", got: sent(lostGap("11", "16"), gone(14), again), opts: lost, unexpected: 1},
		{name: "a sequence after the new object", got: sent(lostGap("11", "18"), gone(17), again), opts: lost, outOfOrder: 1},
		{name: "a deletion told again", got: append(perfect(), lostGap("11", "16"), gone(15)), opts: lost},
		{name: "a deletion told again before its gap", got: append(perfect(), gone(15), lostGap("11", "16")), opts: lost},
		{name: "a deletion told again after a clean end", got: append(perfect(), gapOf("16", "16"), gone(15)), opts: lost, unexpected: 1},
		{name: "a life in the gap, sent in part", got: sent(lostGap("10", "16"), again), opts: lost, unknowable: 1},
		{name: "the same after a clean end", got: sent(gapOf("10", "16"), again), opts: lost, missing: 1, unexpected: 2},
		{name: "the object was noted", got: sent(lostGap("11", "16"), again), opts: lost, missing: 1},
		{
			name: "the object was sent again", opts: lost, missing: 1,
			got: append(slices.Clone(perfect()[:4]), lostGap("10", "16"), inferred(rec("web", "u1", "14", Modified)), again),
		},
		{name: "the state is older than what was sent", got: sent(lostGap("10", "16"), inferred(rec("web", "u1", "12", Added)), old, again), opts: lost, missing: 1, outOfOrder: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := testOracle().Compare(tt.got, tt.opts)
			if len(r.Missing) != tt.missing || len(r.Unexpected) != tt.unexpected ||
				len(r.OutOfOrder) != tt.outOfOrder || len(r.Unknowable) != tt.unknowable {
				t.Errorf("want %d missing, %d unexpected, %d out of order, %d unknowable; got\n%s",
					tt.missing, tt.unexpected, tt.outOfOrder, tt.unknowable, r)
			}
		})
	}
}

func TestCompareIsMildInsideAHole(t *testing.T) {
	o := testOracle(span{16, 20})
	got := append(perfect(), rec("web", "u2", "18", Modified), rec("web", "u2", "19", Deleted))
	if r := o.Compare(got, CompareOptions{AllowHoles: true}); !r.OK() || r.Holes != 1 {
		t.Errorf("got %s", r)
	}
	if r := o.Compare(got, CompareOptions{}); r.OK() || r.Err() == nil {
		t.Errorf("without leave: got %s", r)
	}
	if r := o.Compare(append(got, rec("x", "u3", "21", Added)), CompareOptions{}); len(r.Unexpected) != 1 {
		t.Errorf("after the hole: got %s", r)
	}
}

func TestReportIsReadable(t *testing.T) {
	var records []Record
	for i := range 30 {
		records = append(records, rec("x", "u9", strconv.Itoa(100+i), Modified))
	}
	text := testOracle().Compare(records, CompareOptions{}).String()
	for _, want := range []string{"7 missing, 30 unexpected", "missing: c/u1/15/DELETED: ns/web", "… and 20 more"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
}
