package source

import (
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// retaining makes a source that retains objects whole.
func retaining(o *Options, _ *life) { retainAs(o, "whole") }

func retainAs(o *Options, policy string) {
	o.RetainPolicy, o.RetainFor = policy, o.all()
	o.Retain = func(_ schema.GroupVersionResource, object *delta.Object) *delta.Object { return object }
}

func TestVersionBefore(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"p"}, retaining)
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

	// The same change has the same previous version after a crash, and one that was inferred has what was known.
	l = live(t, server, m, []string{"p"}, retaining)
	l.expect("p", "u11/15/MODIFIED<14")
	server.Write("c", false) // 16: the watch is past what the killed run saw
	l.watching(16)
	l.stop()
	server.Write("b", false) // 17
	server.Write("a", true)
	server.Compact() // 19
	l = live(t, server, m, []string{"p"}, retaining)
	l.watching(19)
	if got, want := l.sorted("p"), []string{"gap 16-19", "u11/15/DELETED+i", "u12/17/MODIFIED+i<12"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	l.stop()

	// Pipelines that do not need it any more do not get it. If they need it again, the next change is the first that is known.
	l = live(t, server, m, []string{"p"}, nil)
	l.stop()
	for _, objects := range m.known {
		for _, k := range objects {
			if k.Retained {
				t.Errorf("%s is still retained", k.Name)
			}
		}
	}
	l = live(t, server, m, []string{"p"}, retaining)
	server.Write("b", false) // 20
	server.Write("b", false)
	l.expect("p", "u12/20/MODIFIED", "u12/21/MODIFIED<20")
}

// An inferred DELETED goes to the pipelines that have the object, with the last state that was seen.
func TestInferredDeletedGoesToThePipelinesThatHaveTheObject(t *testing.T) {
	for _, restart := range []bool{false, true} {
		server, m := things(t, "both", "mine", "none"), newMemory() // 11 to 13
		filters := func(o *Options, l *life) {
			retaining(o, l)
			l.passes = func(pipeline string, object *delta.Object) bool {
				return object.Name() == "both" || pipeline == "p" && strings.HasPrefix(object.Name(), "mine")
			}
		}
		l := live(t, server, m, []string{"p", "q"}, filters)
		l.watching(13)
		if restart {
			l.stop()
		}
		server.Away(func() {
			for _, name := range []string{"both", "mine", "none"} {
				server.Write(name, true)
			}
			server.Compact() // 17
		})
		if restart {
			l = live(t, server, m, []string{"p", "q"}, filters)
		}
		l.watching(17)
		deleted := func(pipeline string) []string {
			return slices.DeleteFunc(l.sorted(pipeline), func(id string) bool { return !strings.Contains(id, "DELETED+i") })
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

// Objects that are recorded only count as sent to the pipelines whose filters they pass.
func TestRecordedObjectsPassToo(t *testing.T) {
	server, m := things(t, "mine", "none"), newMemory() // 11, 12
	silent := func(o *Options, l *life) {
		o.Snapshot = delta.SnapshotNever
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

// BenchmarkPrevious packs a Pod as it is retained for its next change, and unpacks it.
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
	b.Run("new", func(b *testing.B) {
		b.SetBytes(int64(len(object.JSON())))
		for b.Loop() {
			pack(object)
		}
		b.ReportMetric(float64(len(pack(object))), "packed-bytes")
	})
	b.Run("object", func(b *testing.B) {
		packed := pack(object)
		b.SetBytes(int64(len(object.JSON())))
		for b.Loop() {
			unpack(packed)
		}
	})
}

// A pipeline that is new gets no DELETED of an object that it never had; those of a recorded snapshot count as sent.
func TestNewPipelinesGetDeletionsOfWhatTheyHave(t *testing.T) {
	for _, snapshot := range []delta.Snapshot{delta.SnapshotInitial, delta.SnapshotNever} {
		server, m := things(t, "a", "b", "none"), newMemory() // 11 to 13
		filters := func(o *Options, l *life) {
			o.Snapshot = snapshot
			l.passes = func(pipeline string, object *delta.Object) bool { return pipeline == "old" || object.Name() != "none" }
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
		l.snapshotsDone()
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

// The state that is sent to a new pipeline is the previous version of what comes next.
func TestSnapshotOfNewPipelineIsThePreviousVersion(t *testing.T) {
	server, m := things(t, "a"), newMemory() // 11
	l := live(t, server, m, []string{"old"}, nil)
	l.watching(11)
	l.stop()
	l = live(t, server, m, []string{"old", "new"}, retaining)
	l.expect("new", "u11/11/ADDED+s")
	server.Write("a", false)
	l.expect("new", "u11/11/ADDED+s", "u11/12/MODIFIED<11")
}

// What was kept in another way is read once more, or unknown: what was cut out of it does not come back.
func TestKeptInAnotherWay(t *testing.T) {
	server, m := things(t, "a", "b"), newMemory() // 11, 12
	l := live(t, server, m, []string{"p"}, retaining)
	l.watching(12)
	l.stop()
	otherwise := func(o *Options, _ *life) { retainAs(o, "otherwise") }
	l = live(t, server, m, []string{"p"}, otherwise)
	server.Write("a", false) // 13
	server.Write("a", false) // 14
	l.expect("p", "u11/13/MODIFIED", "u11/14/MODIFIED<13")
	l.stop()
	server.Write("b", false) // 15
	l = live(t, server, m, []string{"p"}, retaining)
	eventually(t, func() string {
		if got := l.sorted("p"); len(got) != 1 || !strings.HasSuffix(got[0], "/MODIFIED") {
			return strings.Join(got, " ")
		}
		return ""
	})
}
