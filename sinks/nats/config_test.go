package nats

import (
	"fmt"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name string
		yaml string
		want []string // "path: part of the message", with a leading ! for a warning
	}{
		{"smallest", "urls: [nats://localhost:4222]", nil},
		{"all", `{urls: ["tls://a:1", b, "nats://c"], subject: "x-{cluster}.{name}", credsFile: /c, tls: {caFile: /ca},
			stream: {name: S, create: true, subjects: ["x-eu.>", "*.*"], maxAge: 1h, maxBytes: 1000, discard: new, replicas: 3, duplicates: 5m}}`, nil},
		{"nothing", "{}", []string{"urls: at least one"}},
		{"plaintext", "urls: [localhost, nats://nats:4222]", []string{"!urls: records are sent to nats without TLS"}},
		{"loopback", `urls: ["nats://127.0.0.2:4222", "nats://[::1]"]`, nil},
		{"urls", `urls: ["http://a", "nats://", "nats://u:s3cr3t%zz@a", "://"]`, []string{
			"urls[0]: scheme", "urls[1]: no host", "urls[2]: not a URL", "urls[3]: not a URL",
		}},
		{"mixed schemes", `urls: ["ws://localhost", "nats://127.0.0.1"]`, []string{"urls: cannot be mixed"}},
		{"subject", `{urls: [localhost], subject: "a.*.{name}"}`, []string{`subject: cannot hold "*"`}},
		{"rest", `{urls: [localhost], subject: "a.>"}`, []string{`subject: cannot hold ">"`}},
		{"blank", `{urls: [localhost], subject: "a b"}`, []string{"subject: cannot hold"}},
		{"dots", `{urls: [localhost], subject: "a..{name}"}`, []string{"subject: empty token"}},
		{"last dot", `{urls: [localhost], subject: "a."}`, []string{"subject: empty token"}},
		{"no subject", `{urls: [localhost], subject: ""}`, []string{"subject: needed"}},
		{"system", `{urls: [localhost], subject: "$JS.API"}`, []string{"subject: belongs to the server"}},
		{"placeholder", `{urls: [localhost], subject: "{x}"}`, []string{"subject: unknown placeholder"}},
		{"type", `{urls: [localhost], subject: "k8s.{type}"}`, []string{"!subject: {type}"}},
		{"core", `{urls: [localhost], jetstream: false}`, []string{"!jetstream: nothing is stored"}},
		{"core with a stream", `{urls: [localhost], jetstream: false, stream: {name: S}}`, []string{"stream: no meaning"}},
		{"logins", `{urls: [localhost], credsFile: c, nkeySeedFile: n}`, []string{"username: only one"}},
		{"no password", `{urls: [localhost], tls: {}, username: u}`, []string{"password: needs password"}},
		{"no username", `{urls: [localhost], password: p}`, []string{"username: needs a username"}},
		{"two passwords", `{urls: ["tls://a"], username: u, password: p, passwordFile: f}`, []string{"password: either"}},
		{"in the URL", `{urls: ["nats://u:p@a"], credsFile: f}`, []string{"!urls: precedence", "urls: set tls"}},
		{"stream", `{urls: [localhost], stream: {name: S, subjects: ["a..b", "a.>.b", "x y"]}}`, []string{"!stream.subjects: none of them"}},
		{"no name", `{urls: [localhost], stream: {create: true}}`, []string{"stream.name: needs a name"}},
		{"elsewhere", `{urls: ["tls://a"], tlsFirst: true, inboxPrefix: _INBOX.kubeferry, domain: hub}`, nil},
		{"prefix and domain", `{urls: [localhost], tlsFirst: true, inboxPrefix: "a.*", domain: a.b}`, []string{
			"tlsFirst: needs TLS", "inboxPrefix: no subject", "domain: no domain",
		}},
		{"no domain", `{urls: ["wss://a"], tlsFirst: true, inboxPrefix: "a.", domain: hub, jetstream: false}`, []string{
			"tlsFirst: no meaning", "inboxPrefix: no subject", "domain: no meaning", "!jetstream: nothing is stored",
		}},
		{"short window", `{urls: [localhost], stream: {name: S, duplicates: 10s}}`, []string{"!stream.duplicates: stored twice"}},
		{"other subjects", `{urls: [localhost], stream: {name: S, subjects: [k8s.prod.>]}}`, []string{"!stream.subjects: k8s.*.*.*.*.*"}},
		{"common", `{urls: [localhost], concurrency: 0}`, []string{"concurrency: at least 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := Kind().New()
			if err := yaml.Unmarshal([]byte(test.yaml), config); err != nil {
				t.Fatal(err)
			}
			got := config.Validate()
			if len(got) != len(test.want) {
				t.Fatalf("got %d faults %+v, want %d", len(got), got, len(test.want))
			}
			for i, want := range test.want {
				want, warning := strings.CutPrefix(want, "!")
				path, part, _ := strings.Cut(want, ": ")
				if got[i].Path != path || !strings.Contains(got[i].Message, part) || got[i].Warning != warning {
					t.Errorf("got %+v, want %s", got[i], want)
				}
				if strings.Contains(got[i].Message, "s3cr3t") {
					t.Errorf("a password shows in %q", got[i].Message)
				}
			}
		})
	}
}

// TestCredentialsWithoutTLS has every way to log in over every way to connect.
func TestCredentialsWithoutTLS(t *testing.T) {
	shown := func(text string) (shown string) {
		config := NewConfig()
		if err := yaml.Unmarshal([]byte("{"+text+"}"), config); err != nil {
			t.Fatal(err)
		}
		for _, fault := range config.Validate() {
			shown += fmt.Sprint(fault.Path, " ", fault.Warning, ";")
		}
		return shown
	}
	expect := func(text string, secret bool) {
		t.Helper()
		plain, asked := "", ""
		switch {
		case secret:
			plain, asked = "urls false;", "insecureCredentials true;"
		case !strings.Contains(text, "tls") && !strings.Contains(text, "wss") && !strings.Contains(text, "127.0.0.1"):
			plain, asked = "urls true;", "urls true;" // of the records
		}
		if got := shown(text); got != plain {
			t.Errorf("%s: got %q, want %q", text, got, plain)
		}
		if got := shown(text + ", insecureCredentials: true"); got != asked {
			t.Errorf("%s: got %q, want %q where it is asked for", text, got, asked)
		}
	}
	for login, secret := range map[string]bool{
		"username: u, password: p": true, "username: u, passwordFile: f": true, "tokenFile: f": true,
		"credsFile: f": false, "nkeySeedFile: f": false, "subject: a": false,
	} {
		for _, url := range []string{"a", "nats://a", "ws://a", "nats://127.0.0.1:4222"} {
			expect(fmt.Sprintf("urls: [%q], %s", url, login), secret)
			expect(fmt.Sprintf("urls: [%q], tls: {}, %s", url, login), false)
		}
		for _, urls := range []string{`"tls://a"`, `"wss://a"`, `a, "tls://b"`} { // nats.go then demands it of all
			expect(fmt.Sprintf("urls: [%s], %s", urls, login), false)
		}
	}
	for _, login := range []string{"u:p", "token"} {
		for _, scheme := range []string{"", "nats://", "ws://"} {
			expect(fmt.Sprintf("urls: [%q]", scheme+login+"@a"), true)
		}
		expect(fmt.Sprintf("urls: [%q]", "tls://"+login+"@a"), false)
	}
}

func TestLimits(t *testing.T) {
	want := sinks.Limits{MaxRecords: 500, MaxBytes: 1 << 20, Linger: 5e6, Concurrency: 4, Timeout: 10e9, OnePerKey: true}
	if got := NewConfig().Limits(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
