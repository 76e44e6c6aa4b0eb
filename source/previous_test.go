package source

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/delta"
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

	// Who needs it no more does not get it, and who needs it again does not know it until the next change.
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
	l.expect("p", "u12/19/MODIFIED", "u12/20/MODIFIED<19")
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

func TestTakerSets(t *testing.T) {
	var sets takerSets
	takers := []string{"a", "b", "c"}
	for _, c := range []struct {
		names []string
		want  uint16
	}{
		{nil, 0}, {takers, 0}, {[]string{"b"}, 1}, {[]string{}, 2}, {[]string{"a", "c"}, 3}, {[]string{"b"}, 1}, {[]string{}, 2},
	} {
		if got := sets.number(c.names, takers); got != c.want {
			t.Errorf("%q: got %d, want %d", c.names, got, c.want)
		}
	}
	if got := sets.names(2); got == nil || len(got) != 0 {
		t.Errorf("nobody: got %#v", got)
	}
	if got := sets.names(0); got != nil {
		t.Errorf("everybody: got %v", got)
	}
	only := Audience{Only: []string{"b"}, Before: []string{"a", "b"}}
	if got := merge(takers, only, []string{}); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got %v", got)
	}
	if got := merge(takers, Audience{Only: []string{"b"}}, nil); !slices.Equal(got, takers) {
		t.Errorf("got %v", got)
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
