package webhook

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

func TestCheckStatuses(t *testing.T) {
	r := newReceiver(t, nil)
	token := write(t, "token", []byte(testToken))
	sink := open(t, func(c *Config) {
		c.URL, c.Auth, c.InsecureCredentials = r.url()+"?key=query-secret-1234", &Auth{BearerTokenFile: token}, true
		c.Headers = map[string]string{"X-Team": "audit"}
	})
	for code, want := range map[int]string{
		200: "", 204: "", 400: "", 405: "", 415: "", 501: "",
		302: "set url to where it leads (at http://elsewhere.example)",
		401: "check auth and headers", 403: "check auth and headers", 404: "check url", 410: "check url",
		429: "try again", 500: "try again", 503: "try again",
	} {
		r.setAnswer(func(w http.ResponseWriter, req *http.Request, body []byte) bool {
			if req.Method != http.MethodOptions || len(body) > 0 || req.Header.Get("Authorization") != "Bearer "+testToken || req.Header.Get("X-Team") != "audit" {
				t.Errorf("got %s with %d bytes and header %v", req.Method, len(body), req.Header)
			}
			w.Header().Set("Location", "http://elsewhere.example/path")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(req.Header.Get("Authorization")))
			return false
		})
		err := sink.Check(t.Context())
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d: got %v, want %q", code, err, want)
		}
		if err != nil && (strings.Contains(err.Error(), "query-secret") || strings.Contains(err.Error(), testToken)) {
			t.Errorf("%d: got %v, which shows a credential", code, err)
		}
	}
	if len(r.stored) > 0 {
		t.Errorf("got %d records", len(r.stored))
	}
}

func TestCheckConnection(t *testing.T) {
	ca, stranger := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	good := newReceiver(t, ca.ServerConfig("127.0.0.1"))
	bad := newReceiver(t, stranger.ServerConfig("127.0.0.1"))
	silent := newReceiver(t, nil)
	silent.hang()
	tests := []struct {
		name, url string
		reason    sinks.Reason
		want      string
	}{
		{"TLS", good.url(), "", ""},
		{"another authority", bad.url(), sinks.ReasonUnreachable, "x509: "},
		{"TLS to a plain port", strings.Replace(silent.url(), "http", "https", 1), sinks.ReasonUnreachable, "server gave HTTP response to HTTPS client"},
		{"refused", "http://127.0.0.1:1", sinks.ReasonUnreachable, "connection refused"},
		{"no such host", "http://receiver..invalid", sinks.ReasonUnreachable, "receiver..invalid: no such host"}, // found without asking
		{"silent", silent.url(), sinks.ReasonTimeout, "no answer from http://" + silent.addr},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			sink := open(t, func(c *Config) {
				c.URL, c.Timeout = test.url, 2*time.Second
				if strings.HasPrefix(test.url, "https") {
					c.TLS = &sinks.TLS{CAFile: caFile}
				}
			})
			err := sink.Check(t.Context())
			class := sinks.Classify(err)
			switch {
			case test.reason == "":
				if err != nil {
					t.Errorf("got %v", err)
				}
			case class == nil || class.Reason != test.reason || class.Permanent || !strings.Contains(err.Error(), test.want):
				t.Errorf("got %v, want %s: %q", err, test.reason, test.want)
			}
		})
	}
}
