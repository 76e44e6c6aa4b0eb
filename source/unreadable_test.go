package source

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// A resource whose lists have no resource version cannot be watched without a loss. It is refused, and no probe waits for it.
func TestListsWithoutAVersion(t *testing.T) {
	server := things(t, "a")
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if isWatch(r) || !strings.HasSuffix(r.URL.Path, "/things") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{},"items":[]}`)
		return true
	})
	r := &recorder{}
	source := run(t, front, r, nil)
	eventually(t, func() string {
		s := source.Status()[0]
		if s.State != StateRefused || s.Ready || s.Awaited || !strings.Contains(s.Error, "v1/things: its lists have no resource version") {
			return fmt.Sprintf("got %+v", s)
		}
		return ""
	})
	err := clientFor(t, front).Check(t.Context(), Options{Resources: []schema.GroupVersionResource{sourcetest.Things}})
	if err == nil || !strings.Contains(err.Error(), "v1/things: its lists have no resource version") {
		t.Errorf("Check: got %v", err)
	}
	if got := r.ids(); len(got) > 0 {
		t.Errorf("got %v", got)
	}
}

// A selector that the API server does not know is named, and is no reason to say that the server has no watch-list.
func TestSelectorThatTheServerDoesNotKnow(t *testing.T) {
	server := things(t, "a")
	for _, code := range []int{http.StatusBadRequest, http.StatusUnprocessableEntity} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Query().Get("fieldSelector") == "" {
					return false
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(code)
				fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":"field label not supported: spec.n","code":%d}`,
					map[int]string{400: "BadRequest", 422: "Invalid"}[code], code)
				return true
			})
			want := `the API server does not select v1/things by labelSelector "a=b" and fieldSelector "spec.n=1": field label not supported: spec.n`
			var lines strings.Builder
			l := live(t, front, newMemory(), []string{"p"}, func(o *Options, l *life) {
				o.FieldSelector, o.LabelSelector, l.logger = "spec.n=1", "a=b", slog.New(slog.NewTextHandler(&lines, nil))
			})
			l.reaches(StateFailing)
			if s := l.source.Status()[0]; s.Error != want || !s.Awaited {
				t.Errorf("got %+v", s)
			}
			l.stop()
			if strings.Contains(lines.String(), "no watch-list") {
				t.Errorf("got %s", lines.String())
			}
			err := clientFor(t, front).Check(t.Context(), Options{Resources: []schema.GroupVersionResource{sourcetest.Things}, FieldSelector: "spec.n=1", LabelSelector: "a=b"})
			if err == nil || err.Error() != want {
				t.Errorf("Check: got %v", err)
			}
		})
	}
}

// Changes of objects without a uid or a resource version have no ids of their own: a transport would take one for another, and drop it. Such
// a resource is refused, whether a list shows that or a watch.
func TestObjectsWithoutIdentity(t *testing.T) {
	for name, metadata := range map[string]string{
		"no uid":                          `"name":"a","namespace":"ns","resourceVersion":"11"`,
		"no resource version":             `"name":"a","namespace":"ns","uid":"u11"`,
		"neither uid nor resourceVersion": `"name":"a","namespace":"ns"`,
	} {
		for where, watched := range map[string]bool{"list": false, "watch": true} {
			t.Run(name+", "+where, func(t *testing.T) {
				server := sourcetest.New(t)
				front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, "/things") || isWatch(r) != watched {
						return false
					}
					w.Header().Set("Content-Type", "application/json")
					object := `{"apiVersion":"v1","kind":"Thing","metadata":{` + metadata + `}}`
					if watched {
						fmt.Fprintf(w, `{"type":"ADDED","object":%s}`+"\n", object)
					} else {
						fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"11"},"items":[%s]}`, object)
					}
					return true
				})
				r := &recorder{}
				source := run(t, front, r, nil)
				eventually(t, func() string {
					s := source.Status()[0]
					if s.State != StateRefused || s.Awaited || !strings.Contains(s.Error, `namespace "ns", name "a"`) {
						return fmt.Sprintf("got %+v", s)
					}
					return ""
				})
				if got := r.ids(); len(got) > 0 {
					t.Errorf("got %v", got)
				}
			})
		}
	}
}

// The lists of some extension APIs have a constant version. Such a resource is refused: an exporter that took it for one whose history has
// gone back would end, and set the state of all other resources aside at each start.
func TestListsBelowTheirObjects(t *testing.T) {
	server := sourcetest.New(t)
	front := before(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/things") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		if objects := server.State(sourcetest.Things); isWatch(r) {
			for _, o := range objects {
				fmt.Fprintf(w, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Thing","metadata":{"name":%q,"namespace":"ns","uid":%q,"resourceVersion":"%d"}}}`+"\n", o.Name, o.UID(), o.Version)
			}
			fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Thing","metadata":{"resourceVersion":"1","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		} else {
			var items []string
			for _, o := range objects {
				items = append(items, fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"ns","uid":%q,"resourceVersion":"%d"}}`, o.Name, o.UID(), o.Version))
			}
			fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":[%s]}`, strings.Join(items, ","))
		}
		return true
	})
	l := live(t, front, newMemory(), []string{"p"}, func(o *Options, _ *life) { o.Resources = append(o.Resources, sourcetest.Gadgets) })
	eventually(t, func() string { // without an object, nothing shows it
		if s := l.source.Status()[0]; s.State != StateWatching {
			return fmt.Sprintf("got %+v", s)
		}
		return ""
	})
	server.Write("a", false)         // 11
	server.Write("gadgets:g", false) // 12
	eventually(t, func() string {
		things, gadgets := l.source.Status()[0], l.source.Status()[1]
		if things.State == StateWatching { // the objects may have come by the watch: the next list shows it
			front.CloseClientConnections()
		}
		if things.State != StateRefused || things.Awaited || !strings.Contains(things.Error, `lower resource versions than its objects`) {
			return fmt.Sprintf("got %+v", things)
		}
		if gadgets.State != StateWatching || gadgets.Position != "12" {
			return fmt.Sprintf("got %+v", gadgets)
		}
		return ""
	})
}
