package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// Objects that no source has any more are not forgotten in silence, nor is what waits for a pipeline that is gone.
func TestWhatIsForgottenIsLogged(t *testing.T) {
	var log bytes.Buffer
	dir := t.TempDir()
	store, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	watch := delta.WatchChange{Watch: "w", Meta: []byte(`{"source":"things","resource":"v1/things","position":"14"}`)}
	waiting := delta.LogChange{Pipeline: "late"}
	for n := range uint64(4) {
		watch.Put = append(watch.Put, delta.Known{Namespace: "ns", Name: fmt.Sprint(n), Version: delta.NewVersion(types.UID(fmt.Sprint("u", n)), "14")})
	}
	for n := range uint64(2) {
		waiting.Append = append(waiting.Append, delta.Entry{LogKey: delta.LogKey{Flow: "notices", Seq: n}, Gap: &delta.Gap{Watch: "w"}})
	}
	err = store.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{watch}, Logs: []delta.LogChange{waiting}})
	if err := errors.Join(err, store.Close()); err != nil {
		t.Fatal(err)
	}
	client, err := source.NewClient(&rest.Config{Host: sourcetest.New(t).URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: dir}, client, nil, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	if err := kept.restore(nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"resource=v1/things namespace=\"\" objects=4\n", "pipeline=late entries=2 "} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no line with %q in\n%s", want, &log)
		}
	}
}

// A state directory that comes to another cluster of the same name, or back from there, is begun anew, and the offset does not go back. What
// happened meanwhile is missed. So it is if the file is damaged on its way.
func TestOffsetInAnotherCluster(t *testing.T) {
	uid := ""
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, uid)
	}))
	defer server.Close()
	client, err := source.NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	last := uint64(0)
	for life, cluster := range []string{"old", "new", "old", "damaged"} {
		if uid = cluster; uid == "damaged" {
			if err := os.Truncate(filepath.Join(dir, "kubeferry.db"), 3*int64(os.Getpagesize())); err != nil {
				t.Fatal(err)
			}
		}
		kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: dir}, client, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := kept.offset.Current(); got < last || got == 0 {
			t.Errorf("the offset in %s is %d, and was %d", uid, got, last)
		}
		last = kept.offset.Current()
		if lost := kept.historyLost; lost != (life > 0) {
			t.Errorf("in %s, history is lost: %v", uid, lost)
		}
		if err := kept.begin(nil, nil); err != nil {
			t.Fatal(err)
		}
		if err := kept.finish(); err != nil {
			t.Fatal(err)
		}
		kept.close()
	}
}

// A damaged state file had positions: what happened since is missed, until the watches that a first commit writes say so.
func TestBehindADamagedFile(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"u"}}`)
	}))
	defer server.Close()
	client, err := source.NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubeferry.db"), []byte("cut short"), 0o600); err != nil {
		t.Fatal(err)
	}
	for life, lost := range []bool{true, true, false} {
		kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: dir}, client, nil, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		if got := kept.historyLost; got != lost || kept.offset.Current() == 0 {
			t.Errorf("life %d: history is lost: %v; %+v", life, got, kept.store.Info())
		}
		if life > 0 { // the first one ends before its first commit
			if err := kept.begin(nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		kept.close()
	}
}
