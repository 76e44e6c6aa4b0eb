package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestCustomBodies sends bodies of one's own: pairs of lines to a service that answers 200 and means no for a while, and texts to another
// one. kubeferry is killed meanwhile.
func TestCustomBodies(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "custom")
	config := rest.CopyConfig(plane(t).Config())
	config.UserAgent = "creator/v1" // the manager
	objects := objectsIn(t, config, configMaps, namespace)

	bulk, chat := startService(t, "application/x-ndjson"), startService(t, "text/plain; charset=utf-8")
	bulk.answer(`{"errors": true}`)
	chat.answer("ok")
	file := writeConfig(t, t.TempDir(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines:
  - name: bulk
    sink: bulk
    format: custom
    body: |
      notice != null || object.metadata.name == "quiet" ? null : [
        {"index": {"_id": id}},
        {"type": type, "name": object.metadata.name, "cluster": cluster, "sequence": sequence, "second": int(time), "by": changedBy.map(m, m.manager)}
      ]
  - name: chat
    sink: chat
    filters: [{types: [DELETED]}]
    format: custom
    body: |
      notice != null ? null : object.kind + " <" + object.metadata.name + "> is gone"
sinks:
  - {name: bulk, webhook: {url: %q, batch: {maxRecords: 10, framing: ndjson}, success: "status == 200 && body.errors == false"}}
  - {name: chat, webhook: {url: %q}}
`, filepath.Join(t.TempDir(), "state"), namespace, bulk.server.URL, chat.server.URL))

	e := runExporter(t, plane(t).KubeconfigFile(), file)
	e.WaitReady()
	var want []string // ids, in which the kind of change comes last
	id := func(uid, version, kind string) {
		want = append(want, strings.Join([]string{clusterName, uid, version, kind}, "/"))
	}
	for _, name := range []string{"one", "two"} {
		made := objects.Create(name, data("a"))
		id(string(made.GetUID()), made.GetResourceVersion(), "ADDED")
	}
	eventually(t, wide, "refused requests", func() error {
		if len(bulk.bodies()) < 2 {
			return errors.New("there are none")
		}
		return nil
	})
	e.Kill()
	refused := len(bulk.bodies())
	bulk.answer(`{"errors": false}`)

	e = runExporter(t, plane(t).KubeconfigFile(), file)
	e.WaitReady()
	objects.Create("quiet", data("a"))
	changed := objects.Patch("one", data("b"))
	id(string(changed.GetUID()), changed.GetResourceVersion(), "MODIFIED")
	objects.Delete("two")
	eventually(t, wide, "all changes at both", func() error {
		if got := sentTo(t, bulk.bodies()[refused:]); len(got) < 4 || len(chat.bodies()) == 0 {
			return fmt.Errorf("got %q and %q", got, chat.bodies())
		}
		return nil
	})
	e.WaitSettled(wide)
	got := sentTo(t, bulk.bodies()[refused:])
	for _, id := range want {
		if !slices.Contains(got, id) {
			t.Errorf("no line with the id %s among %q", id, got)
		}
	}
	if !slices.ContainsFunc(got, func(id string) bool { return strings.HasSuffix(id, "/DELETED") }) {
		t.Errorf("no line of the deletion among %q", got)
	}
	if filtered := e.Metrics().sum("kubeferry_deltas_filtered_total", "pipeline=bulk"); filtered != 1 {
		t.Errorf("%v changes are filtered, want the one whose body is null", filtered)
	}
	if texts := chat.bodies(); len(texts) != 1 || texts[0] != "ConfigMap <two> is gone" {
		t.Errorf("got the texts %q", texts)
	}
}

// sentTo returns the ids in requests of pairs of lines, and checks the pairs.
func sentTo(t *testing.T, bodies []string) (ids []string) {
	t.Helper()
	for _, body := range bodies {
		decoder := json.NewDecoder(bytes.NewReader([]byte(body)))
		for {
			var action struct {
				Index struct {
					ID string `json:"_id"`
				}
			}
			if err := decoder.Decode(&action); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			var line struct {
				Type, Name, Cluster, Sequence string
				Second                        int64
				By                            []string
			}
			if err := decoder.Decode(&line); err != nil {
				t.Fatalf("%s: %v", body, err)
			}
			named := slices.Equal(line.By, []string{"creator"}) || line.Type == "DELETED" && len(line.By) == 0
			recent := time.Since(time.Unix(line.Second, 0)).Abs() < time.Hour
			if !strings.HasSuffix(action.Index.ID, "/"+line.Type) || line.Cluster != clusterName || len(line.Sequence) != 20 || !recent || !named || line.Name == "quiet" {
				t.Errorf("got the pair %+v, %+v", action, line)
			}
			ids = append(ids, action.Index.ID)
		}
	}
	return ids
}

// service is a receiver of bodies that kubeferry does not define.
type service struct {
	server *httptest.Server

	mu       sync.Mutex // guards what follows
	says     string
	received []string
}

func startService(t *testing.T, contentType string) *service {
	s := &service{}
	s.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if got := r.Header.Get("Content-Type"); err != nil || got != contentType {
			t.Errorf("got the content type %q, %v, want %q", got, err, contentType)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.received = append(s.received, string(body))
		_, _ = io.WriteString(w, s.says)
	}))
	t.Cleanup(s.server.Close)
	return s
}

func (s *service) answer(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.says = text
}

func (s *service) bodies() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.received)
}
