package source

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// What is known and not selected any more is looked up by its metadata alone: the objects may be large, and may be Secrets. What
// cannot be read counts as not deleted. A line of the log counts both.
func TestLookUpOfWhatIsNotSelectedAnyMore(t *testing.T) {
	for name, tt := range map[string]struct {
		forbidden bool
		want      []string
		logged    []string
	}{
		"read": {
			want:   []string{"u12/12/DELETED+i", "u13/13/DELETED+i+left", "u14/14/DELETED+i+left"},
			logged: []string{"level=WARN", "are not selected any more", "deleted=1 stillThere=2"},
		},
		"forbidden": {
			forbidden: true,
			want:      []string{"u12/12/DELETED+i+left", "u13/13/DELETED+i+left", "u14/14/DELETED+i+left"},
			logged:    []string{"level=WARN", "count as not deleted", "deleted=0 stillThere=3"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			server, m := things(t, "shop/a", "team/b", "team/c", "team/d"), newMemory() // 11 to 14
			including := func(namespaces ...string) func(*Options, *life) {
				return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: namespaces} }
			}
			l := live(t, server, m, []string{"p"}, including("shop", "team"))
			l.expectSet("p", "u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED+s")
			l.snapshotsDone()
			l.stop()
			server.Write("team/b", true) // 15
			var requests atomic.Int64
			front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, "/namespaces/team/") { // nothing selects it, so only the look-up reads it
					return false
				}
				requests.Add(1)
				if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, "application/json;as=PartialObjectMetadataList;") {
					t.Errorf("%s asks for %q", r.URL, accept)
				}
				if tt.forbidden {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusForbidden)
					_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"not you","reason":"Forbidden","code":403}`))
				}
				return tt.forbidden
			})
			var lines bytes.Buffer
			l = live(t, front, m, []string{"p"}, func(o *Options, l *life) {
				including("shop")(o, l)
				l.logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelWarn}))
			})
			l.expectSet("p", tt.want...)
			l.stop()
			if requests.Load() == 0 {
				t.Error("nothing was looked up")
			}
			for _, text := range tt.logged {
				if !strings.Contains(lines.String(), text) {
					t.Errorf("no %q in\n%s", text, &lines)
				}
			}
		})
	}
}
