package webhook

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// forwarder is a real forward proxy. It forwards every request to the one receiver.
type forwarder struct {
	server   *httptest.Server
	receiver *receiver
	password string // that it requires
	tunnels  sync.WaitGroup

	mu    sync.Mutex // guards what follows
	seen  []string
	certs int // clients that showed a certificate
}

func newForwarder(t *testing.T, r *receiver, tlsConfig *tls.Config, password string) *forwarder {
	t.Helper()
	f := &forwarder{receiver: r, password: password}
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(f.handle))
	f.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if tlsConfig == nil {
		f.server.Start()
	} else {
		f.server.TLS = tlsConfig.Clone()
		f.server.TLS.ClientAuth = tls.RequestClientCert
		f.server.StartTLS()
	}
	t.Cleanup(func() {
		f.server.Close()
		f.tunnels.Wait()
	})
	return f
}

func (f *forwarder) handle(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.seen = append(f.seen, r.Method+" "+r.RequestURI)
	if r.TLS != nil {
		f.certs += len(r.TLS.PeerCertificates)
	}
	f.mu.Unlock()
	want := "Basic " + base64.StdEncoding.EncodeToString([]byte("user:"+f.password))
	if r.Header.Get("Proxy-Authorization") != want {
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	if r.Method != http.MethodConnect {
		f.receiver.handle(w, r)
		return
	}
	there, err := net.Dial("tcp", f.receiver.addr)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	w.WriteHeader(http.StatusOK)
	here, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		_ = there.Close()
		return
	}
	f.tunnels.Go(func() {
		_, _ = io.Copy(there, buffered)
		_ = there.Close()
	})
	f.tunnels.Go(func() {
		_, _ = io.Copy(here, there)
		_ = here.Close()
	})
}

// throughProxy delivers one record in a process of its own, because the environment's proxy is read once per process,
// and returns its output. net/http never uses a proxy for an address of the loopback, so the target has a name.
func throughProxy(t *testing.T, variables ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxy$", "-test.v")
	command.Env = append(os.Environ(), "NO_PROXY=", "no_proxy=", "http_proxy=", "https_proxy=", "HTTP_PROXY=", "HTTPS_PROXY=")
	command.Env = append(command.Env, variables...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// deliverToTarget is what that process does.
func deliverToTarget(t *testing.T, target string) {
	config := newConfig(func(c *Config) {
		c.URL = target
		if caFile := os.Getenv("KUBEFERRY_TEST_CA"); caFile != "" {
			c.TLS = &sinks.TLS{
				CAFile: caFile, ServerName: os.Getenv("KUBEFERRY_TEST_NAME"),
				CertFile: os.Getenv("KUBEFERRY_TEST_CERT"), KeyFile: os.Getenv("KUBEFERRY_TEST_KEY"),
			}
		}
	})
	sink, err := config.Open(t.Context(), sinks.Env{Name: "hook", UserAgent: "kubeferry/test", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		fmt.Println("error: open:", err)
		return
	}
	defer sink.Close(t.Context())
	for n := range 3 {
		if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", n)}); err != nil {
			fmt.Println("error:", sinks.Classify(err).Reason, err)
			return
		}
	}
}

func TestProxy(t *testing.T) {
	if target := os.Getenv("KUBEFERRY_TEST_TARGET"); target != "" {
		deliverToTarget(t, target)
		return
	}
	const (
		plain  = "KUBEFERRY_TEST_TARGET=http://receiver.invalid/hook"
		secure = "KUBEFERRY_TEST_TARGET=https://receiver.invalid/hook"
	)
	ca, stranger := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	caVariable, systemCA := "KUBEFERRY_TEST_CA="+caFile, "SSL_CERT_FILE="+caFile
	cert, key := ca.Issue("kubeferry")
	pair := []string{"KUBEFERRY_TEST_CERT=" + write(t, "cert.pem", cert), "KUBEFERRY_TEST_KEY=" + write(t, "key.pem", key)}
	tests := []struct {
		name      string
		proxy     *tls.Config // nil: it speaks plain HTTP
		receiver  *tls.Config
		password  string // that the proxy requires; the sink has proxy-secret
		variables []string
		seen      string // by the proxy
		want      string // in the error; empty for success
	}{
		{"http, to http", nil, nil, "proxy-secret", []string{plain}, "POST http://receiver.invalid/hook", ""},
		{"http, to https", nil, ca.ServerConfig("receiver.invalid"), "proxy-secret", []string{secure, caVariable}, "CONNECT receiver.invalid:443", ""},
		{
			"http, to https under another name", nil, ca.ServerConfig("hidden.example"), "proxy-secret",
			[]string{secure, caVariable, "KUBEFERRY_TEST_NAME=hidden.example"},
			"CONNECT receiver.invalid:443", "",
		},
		{
			"http, to https of a stranger", nil, stranger.ServerConfig("receiver.invalid"), "proxy-secret",
			[]string{secure, caVariable},
			"CONNECT receiver.invalid:443", "error: unreachable",
		},
		{
			"http, to https with a client certificate", nil, ca.ServerConfig("receiver.invalid"), "proxy-secret",
			append([]string{secure, caVariable}, pair...), "CONNECT receiver.invalid:443", "",
		},
		{"https, to http", ca.ServerConfig("127.0.0.1"), nil, "proxy-secret", []string{plain, systemCA}, "POST http://receiver.invalid/hook", ""},
		{
			"https, to https", ca.ServerConfig("127.0.0.1"), ca.ServerConfig("receiver.invalid"), "proxy-secret",
			[]string{secure, systemCA},
			"CONNECT receiver.invalid:443", "",
		},
		{
			"https, with a tls section", ca.ServerConfig("127.0.0.1"), ca.ServerConfig("receiver.invalid"), "proxy-secret",
			append([]string{secure, caVariable}, pair...), "", "error: unreachable send to https://receiver.invalid: proxyconnect tcp: ",
		},
		{
			"https of a stranger", stranger.ServerConfig("127.0.0.1"), ca.ServerConfig("receiver.invalid"), "proxy-secret",
			[]string{secure, systemCA},
			"", "error: unreachable send to https://receiver.invalid: proxyconnect tcp: ",
		},
		{
			"https under another name", ca.ServerConfig("proxy.example"), ca.ServerConfig("receiver.invalid"), "proxy-secret",
			[]string{secure, systemCA},
			"", "error: unreachable send to https://receiver.invalid: proxyconnect tcp: ",
		},
		{
			"another password", nil, ca.ServerConfig("receiver.invalid"), "changed",
			[]string{secure, caVariable},
			"CONNECT receiver.invalid:443", "Proxy Authentication Required",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if test.receiver != nil && slices.Contains(test.variables, pair[0]) {
				test.receiver.ClientAuth, test.receiver.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
			}
			r := newReceiver(t, test.receiver)
			f := newForwarder(t, r, test.proxy, test.password)
			address := strings.Replace(f.server.URL, "://", "://user:proxy-secret@", 1)
			out := throughProxy(t, append(test.variables, "HTTP_PROXY="+address, "HTTPS_PROXY="+address)...)
			if strings.Contains(out, "proxy-secret") || test.want == "" && strings.Contains(out, "error:") || !strings.Contains(out, test.want) {
				t.Errorf("got %s, want %q", out, test.want)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			f.mu.Lock()
			defer f.mu.Unlock()
			records := 3
			if test.want != "" {
				records = 0
			}
			if len(r.stored) != records {
				t.Errorf("got %d records, want %d", len(r.stored), records)
			}
			if test.seen == "" && len(f.seen) > 0 || test.seen != "" && !slices.Contains(f.seen, test.seen) {
				t.Errorf("the proxy saw %q, want %q", f.seen, test.seen)
			}
			if f.certs > 0 {
				t.Error("the proxy got the client certificate")
			}
			if strings.HasPrefix(test.seen, "CONNECT") && records > 0 && (len(f.seen) != 1 || r.requests[0].ProtoMajor != 2) {
				t.Errorf("the proxy saw %q and the receiver %s, want one tunnel with HTTP/2", f.seen, r.requests[0].Proto)
			}
		})
	}
}
