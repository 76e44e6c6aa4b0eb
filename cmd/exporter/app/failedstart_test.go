package app

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// A replica whose port is taken once it leads has sent nothing: the next start is not one behind a kill.
func TestFailedStartOfALeader(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	var taken net.Listener
	api := withLease(t, sync.OnceFunc(func() {
		if taken, err = net.Listen("tcp", address); err != nil {
			t.Error(err)
		}
	}))
	dir := t.TempDir()
	loaded, _, err := config.Parse(fmt.Appendf(nil, `{cluster: c, stateDir: %s, server: {listen: "127.0.0.1:0"}, replication: {listen: %q, advertise: %q},
leaderElection: {leaseName: l, leaseNamespace: n}, sinks: [{name: out, stdout: {}}],
sources: [{name: s, resources: [v1/things]}], pipelines: [{name: p, sink: out}]}`, dir, address, address), "config.yaml", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
	if err != nil {
		t.Fatal(err)
	}
	err = Run(t.Context(), loaded, &rest.Config{Host: api}, "test", nil, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "replication.listen") {
		t.Fatalf("got %v", err)
	}
	taken.Close()
	store, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	if info := store.Info(); info.Replica == nil || !info.Clean {
		t.Errorf("the failed start left %+v", info)
	}
	if err := store.Close(); err != nil {
		t.Error(err)
	}
}

// withLease starts an API server with a Lease and things. It calls led before the Lease is taken.
func withLease(t *testing.T, led func()) string {
	t.Helper()
	to, err := url.Parse(sourcetest.New(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	things := httputil.NewSingleHostReverseProxy(to)
	var mu sync.Mutex
	lease := &coordinationv1.Lease{} // one that was given up
	lease.Name, lease.Annotations = "l", map[string]string{"kubeferry.dev/term": "1", "kubeferry.dev/released": "1"}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:serviceaccount:n:a"}}}`)
		case !strings.Contains(r.URL.Path, "/leases"):
			things.ServeHTTP(w, r)
		case r.Method != http.MethodGet:
			led()
			body, err := io.ReadAll(r.Body)
			if err == nil {
				lease = &coordinationv1.Lease{}
				_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, lease)
			}
			if err != nil {
				t.Error(err)
			}
			_ = json.NewEncoder(w).Encode(lease)
		default:
			_ = json.NewEncoder(w).Encode(lease)
		}
	}))
	t.Cleanup(front.Close)
	return front.URL
}
