package source

import (
	"bytes"
	"slices"
	"testing"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// An object is deleted after it ceased to pass the filters of a pipeline that did not say so: a DELETED that only names the object follows,
// however the deletion comes to light. A pipeline that said so, or never had the object, gets nothing.
func TestDeletedWhenItPassesNoLonger(t *testing.T) {
	names := []string{"silent", "announcing", "never"}
	announcing := PipelineSet(0b010)
	adjust := func(o *Options, l *life) {
		retaining(o, l)
		o.Announcing, l.filters = announcing, true
		l.passes = func(pipeline string, object *delta.Object) bool {
			return pipeline != "never" && object.ResourceVersion() == "11"
		}
	}
	type history struct {
		*life
		server *sourcetest.Server
		again  func() // stops the life, and begins another one
	}
	for name, c := range map[string]struct {
		delete func(t *testing.T, h *history)
		want   []string
	}{
		"while it runs": {func(_ *testing.T, h *history) { h.server.Write("a", true) }, []string{"u11/13/DELETED"}},
		"after a restart": {func(_ *testing.T, h *history) {
			h.again()
			h.server.Write("a", true)
		}, []string{"u11/13/DELETED"}},
		"after a restart from which on it would be said": {func(_ *testing.T, h *history) {
			announcing = 0b011
			h.again()
			h.server.Write("a", true)
		}, []string{"u11/13/DELETED"}},
		"between two runs, and the history is refused": {func(_ *testing.T, h *history) {
			h.server.Away(func() {
				h.server.Write("a", true)
				h.server.Compact()
			})
		}, []string{"gap 12-14", "u11/12/DELETED+i"}},
		"and replaced": {func(_ *testing.T, h *history) {
			h.server.Away(func() {
				h.server.Write("a", true)
				h.server.Write("a", false)
				h.server.Compact()
			})
		}, []string{"gap 12-15", "u11/12/DELETED+i"}},
		"with its resource": {func(_ *testing.T, h *history) { h.server.SetMissing(true) }, []string{"gap 12-", "u11/12/DELETED+i"}},
		"and a stop comes between two records": {func(t *testing.T, h *history) {
			h.mu.Lock()
			h.after = h.handed + 1
			h.mu.Unlock()
			h.server.Write("a", true)
			eventually(t, func() string {
				h.mu.Lock()
				defer h.mu.Unlock()
				return map[bool]string{true: "the second one is not handed over"}[h.handed <= h.after]
			})
			h.again()
		}, []string{"u11/13/DELETED"}},
	} {
		t.Run(name, func(t *testing.T) {
			announcing = 0b010
			server, m := things(t, "a"), newMemory() // 11
			h := &history{life: live(t, server, m, names, adjust), server: server}
			h.again = func() {
				h.stop()
				h.life = live(t, server, m, names, adjust)
			}
			h.watching(11)
			h.snapshotsDone()
			server.Write("a", false) // 12
			h.watching(12)
			h.expect("announcing", "u11/11/ADDED+s", "u11/12/DELETED<11")
			before := h.life
			c.delete(t, h)
			want := c.want
			if h.life == before {
				want = slices.Concat([]string{"u11/11/ADDED+s"}, want)
			}
			h.expect("silent", want...)
			last := h.delta(want[len(want)-1])
			if !last.FinalStateUnknown || !bytes.Equal(last.Object.JSON(), last.Object.Identity().JSON()) {
				t.Errorf("got %+v, %s", last, last.Object.JSON())
			}
			h.stop()
			for _, name := range []string{"announcing", "never"} {
				if got := h.got[name]; slices.Contains(got, want[len(want)-1]) {
					t.Errorf("%s got %v", name, got)
				}
			}
		})
	}
}
