package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
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
	take := sync.OnceFunc(func() {
		if taken, err = net.Listen("tcp", address); err != nil {
			t.Error(err)
		}
	})
	api := withLease(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if writesLease(r) {
			take()
		}
		return false
	})
	dir := t.TempDir()
	err = Run(t.Context(), replicaConfig(t, dir, address), &rest.Config{Host: api}, "test", nil, slog.New(slog.DiscardHandler))
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

// served runs a replica, and reports whether the Lease came to name its address within ten seconds.
func served(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var found atomic.Bool
	api := withLease(t, func(w http.ResponseWriter, r *http.Request) bool {
		if before(w, r) {
			return true
		}
		if body, err := io.ReadAll(r.Body); err != nil {
			return true // the replica has ended
		} else if r.Body = io.NopCloser(bytes.NewReader(body)); writesLease(r) && bytes.Contains(body, []byte("127.0.0.1:0")) {
			found.Store(true)
			cancel()
		}
		return false
	})
	loaded := replicaConfig(t, t.TempDir(), "127.0.0.1:0")
	if err := Run(ctx, loaded, &rest.Config{Host: api}, "test", nil, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	return found.Load()
}

// A replica that has taken the Lease needs no further answer before it serves: the API server that it was connected to may have died
// with the former leader.
func TestTakeoverWaitsForNoIdentity(t *testing.T) {
	var identified atomic.Bool
	if !served(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/v1/namespaces/kube-system" || !identified.Swap(true) {
			return false
		}
		<-r.Context().Done()
		return true
	}) {
		t.Error("it does not serve")
	}
}

// A replica that is started while the API server has a fault waits, as for every other answer: it does not end as if misconfigured.
func TestStartWaitsForItsServiceAccount(t *testing.T) {
	var reviews atomic.Int64
	if !served(t, func(w http.ResponseWriter, r *http.Request) bool {
		failed := strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") && reviews.Add(1) <= 2
		if failed {
			w.WriteHeader(http.StatusInternalServerError)
		}
		return failed
	}) {
		t.Error("it does not serve")
	}
}

// One that can never be a replica ends at once.
func TestStartAsNoServiceAccount(t *testing.T) {
	for name, answer := range map[string]string{
		"another user": `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"admin"}}}`,
		"no right":     `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`,
		"no such API":  `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`,
	} {
		api := withLease(t, func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.HasSuffix(r.URL.Path, "/selfsubjectreviews") {
				return false
			}
			w.Header().Set("Content-Type", "application/json")
			if code, failed := map[string]int{"no right": http.StatusForbidden, "no such API": http.StatusNotFound}[name]; failed {
				w.WriteHeader(code)
			}
			fmt.Fprint(w, answer)
			return true
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		err := Run(ctx, replicaConfig(t, t.TempDir(), "127.0.0.1:0"), &rest.Config{Host: api}, "test", nil, slog.New(slog.DiscardHandler))
		var failure *FailureError
		if err == nil || errors.As(err, &failure) {
			t.Errorf("%s: got %v, want an error of the configuration", name, err)
		}
	}
}

// replicaConfig is that of a replica that listens at an address.
func replicaConfig(t *testing.T, dir, address string) *config.Config {
	t.Helper()
	loaded, _, err := config.Parse(fmt.Appendf(nil, `{cluster: c, stateDir: %s, server: {listen: "127.0.0.1:0"}, replication: {listen: %q, advertise: %q},
leaderElection: {leaseName: l, leaseNamespace: n}, sinks: [{name: out, stdout: {}}],
sources: [{name: s, resources: [v1/things]}], pipelines: [{name: p, sink: out}]}`, dir, address, address), "config.yaml", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
	if err != nil {
		t.Fatal(err)
	}
	return loaded
}

func writesLease(r *http.Request) bool {
	return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/leases")
}

// withLease starts an API server with a Lease and things. What before returns true for is answered.
func withLease(t *testing.T, before func(http.ResponseWriter, *http.Request) bool) string {
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
		if before(w, r) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:serviceaccount:n:a"}}}`)
			return
		case !strings.Contains(r.URL.Path, "/leases"):
			things.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if r.Method != http.MethodGet {
			body, err := io.ReadAll(r.Body)
			if err == nil {
				lease = &coordinationv1.Lease{}
				err = json.Unmarshal(body, lease)
			}
			if err != nil {
				t.Error(err)
			}
		}
		_ = json.NewEncoder(w).Encode(lease)
	}))
	t.Cleanup(front.Close)
	return front.URL
}
