package source

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// keeping makes a handler that keeps objects whole.
func keeping(_ *Options, l *life) { l.keeps = "whole" }

func TestVersionBefore(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"p"}, keeping)
	l.watching(12)
	server.Write("a", false) // 13
	server.Write("a", false)
	l.watching(14)
	l.capture()
	server.Write("a", false) // 15, seen and not committed
	l.watching(15)
	l.crash()
	if got, want := l.sorted("p"), []string{"u11/11/ADDED+s", "u11/13/MODIFIED<11", "u11/14/MODIFIED<13", "u11/15/MODIFIED<14", "u12/12/ADDED+s"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}

	// The same change has the same version before after a crash, and one that was inferred has what was known.
	l = live(t, server, m, []string{"p"}, keeping)
	l.expect("p", "u11/15/MODIFIED<14")
	l.stop()
	server.Write("b", false) // 16
	server.Write("a", true)
	server.Compact() // 18
	l = live(t, server, m, []string{"p"}, keeping)
	l.watching(18)
	if got, want := l.sorted("p"), []string{"gap 15-18", "u11/15/DELETED+i", "u12/16/MODIFIED+i<12"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	l.stop()

	// Who needs it no more does not get it. Who needs it again has it from the state at the position.
	l = live(t, server, m, []string{"p"}, nil)
	l.stop()
	for _, objects := range m.known {
		for _, k := range objects {
			if k.Previous != nil {
				t.Errorf("%s is still kept", k.Name)
			}
		}
	}
	server.Write("b", false) // 19
	server.Write("b", false)
	l = live(t, server, m, []string{"p"}, keeping)
	l.expect("p", "u12/19/MODIFIED<16", "u12/20/MODIFIED<19")
}

// An inferred DELETED goes to those who were told of the object, with the last state that was seen.
func TestInferredDeletedGoesToThoseWhoWereTold(t *testing.T) {
	for _, restart := range []bool{false, true} {
		server, m := things(t, "both", "mine", "none"), newMemory() // 11 to 13
		filters := func(_ *Options, l *life) {
			l.keeps = "whole"
			l.passes = func(taker string, object *delta.Object) bool {
				return object.Name() == "both" || taker == "p" && strings.HasPrefix(object.Name(), "mine")
			}
		}
		l := live(t, server, m, []string{"p", "q"}, filters)
		l.watching(13)
		if restart {
			l.stop()
		} else {
			server.Cut(false)
		}
		for _, name := range []string{"both", "mine", "none"} {
			server.Write(name, true)
		}
		server.Compact() // 17
		if restart {
			l = live(t, server, m, []string{"p", "q"}, filters)
		}
		l.watching(17)
		deleted := func(taker string) []string {
			return slices.DeleteFunc(l.sorted(taker), func(id string) bool { return !strings.Contains(id, "DELETED+i") })
		}
		if got, want := deleted("p"), []string{"u11/11/DELETED+i", "u12/12/DELETED+i"}; !slices.Equal(got, want) {
			t.Errorf("restart %v: p got %v, want %v", restart, got, want)
		}
		if got, want := deleted("q"), []string{"u11/11/DELETED+i"}; !slices.Equal(got, want) {
			t.Errorf("restart %v: q got %v, want %v", restart, got, want)
		}
		l.stop()
	}
}

// Objects that are learned silently are known to those whose filters they pass.
func TestSilentlyLearnedObjectsPassToo(t *testing.T) {
	server, m := things(t, "mine", "none"), newMemory() // 11, 12
	silent := func(o *Options, l *life) {
		o.Snapshot = SnapshotNever
		l.passes = func(_ string, object *delta.Object) bool { return object.Name() == "mine" }
	}
	l := live(t, server, m, []string{"p", "q"}, silent)
	l.watching(12)
	l.stop()
	server.Write("mine", true)
	server.Write("none", true)
	server.Compact()
	l = live(t, server, m, []string{"p", "q"}, silent)
	l.watching(15)
	if got, want := l.sorted("p"), []string{"gap 12-15", "u11/11/DELETED+i"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTakers(t *testing.T) {
	takers := []string{"a", "b", "c"}
	for _, c := range []struct {
		passed []string
		missed uint64
	}{
		{nil, 0}, {takers, 0}, {[]string{"b"}, 0b101}, {[]string{}, 0b111}, {[]string{"a", "c"}, 0b010}, {[]string{"gone", "a"}, 0b110},
	} {
		if got := misses(c.passed, takers); got != c.missed {
			t.Errorf("%q: got %b, want %b", c.passed, got, c.missed)
		}
	}
	if got := passing(0b111, takers); got == nil || len(got) != 0 {
		t.Errorf("nobody: got %#v", got)
	}
	if got := passing(0, takers); got != nil {
		t.Errorf("everybody: got %v", got)
	}
	if got := remap(0b010, []string{"b", "c", "gone"}, takers); got != 0b101 { // a is new, and c was missed
		t.Errorf("got %b", got)
	}
	if got := remap(0, nil, takers); got != 0 {
		t.Errorf("an older state: got %b", got)
	}
	only := Audience{Only: []string{"b"}, Before: []string{"a", "b"}}
	if got := merge(takers, only, []string{}); got != 0b110 {
		t.Errorf("got %b", got)
	}
	if got := merge(takers, Audience{Only: []string{"b"}}, nil); got != 0 {
		t.Errorf("got %b", got)
	}
}

// BenchmarkPrevious packs a Pod as it is kept for its next change, and unpacks it.
func BenchmarkPrevious(b *testing.B) {
	raw, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		b.Fatal(err)
	}
	object, err := delta.NewObject(raw)
	if err != nil {
		b.Fatal(err)
	}
	object = object.WithoutManagedFields()
	b.Run("keep", func(b *testing.B) {
		b.SetBytes(int64(len(object.JSON())))
		for b.Loop() {
			keep(object)
		}
		b.ReportMetric(float64(len(keep(object))), "kept-bytes")
	})
	b.Run("object", func(b *testing.B) {
		packed := keep(object)
		b.SetBytes(int64(len(object.JSON())))
		for b.Loop() {
			packed.object()
		}
	})
}

// Who was not there when an object was known is not told that it is gone, but of those that it learned of silently.
func TestNewTakersAreToldOfWhatTheyKnow(t *testing.T) {
	for _, snapshot := range []Snapshot{SnapshotInitial, SnapshotNever} {
		server, m := things(t, "a", "b", "none"), newMemory() // 11 to 13
		filters := func(o *Options, l *life) {
			o.Snapshot = snapshot
			l.passes = func(taker string, object *delta.Object) bool { return taker == "old" || object.Name() != "none" }
		}
		l := live(t, server, m, []string{"old"}, filters)
		l.watching(13)
		l.stop()
		server.Write("a", true)
		server.Compact() // 15
		l = live(t, server, m, []string{"old", "new"}, filters)
		l.watching(15)
		if got := l.sorted("new"); slices.Contains(got, "u11/11/DELETED+i") {
			t.Errorf("%s: new got %v", snapshot, got)
		}
		l.stop()
		l = live(t, server, m, []string{"old", "new"}, filters)
		l.watching(15)
		l.stop()
		server.Write("b", true)
		server.Write("none", true)
		server.Compact() // 18
		l = live(t, server, m, []string{"old", "new"}, filters)
		l.watching(18)
		if got, want := l.sorted("new"), []string{"gap 15-18", "u12/12/DELETED+i"}; !slices.Equal(got, want) {
			t.Errorf("%s: new got %v, want %v", snapshot, got, want)
		}
		l.stop()
	}
}

// The state that a new taker is sent is the version before of what comes next.
func TestSnapshotOfNewTakerIsTheVersionBefore(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(11)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, keeping)
	l.expect("new", "u11/11/ADDED+s")
	server.Write("a", false)
	l.expect("new", "u11/11/ADDED+s", "u11/12/MODIFIED<11")
}

// What was kept in another way is read once more, or unknown: what was cut out of it does not come back.
func TestKeptInAnotherWay(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"p"}, keeping)
	l.watching(12)
	l.stop()
	otherwise := func(_ *Options, l *life) { l.keeps = "otherwise" }
	server.Write("a", false) // 13
	l = live(t, server, m, []string{"p"}, otherwise)
	l.expect("p", "u11/13/MODIFIED<11") // from the state at 12
	l.stop()
	server.CompactStates()
	server.Write("b", false) // 14, or so
	l = live(t, server, m, []string{"p"}, keeping)
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) != 1 || !strings.HasSuffix(got[0], "/MODIFIED") {
			return strings.Join(got, " ")
		}
		return ""
	})
}
