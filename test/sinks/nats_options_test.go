package sinks_test

import (
	"crypto/tls"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// TestNATSInboxPrefix: a user who may subscribe to an inbox of its own only gets its acknowledgements there.
func TestNATSInboxPrefix(t *testing.T) {
	t.Parallel()
	user := &server.User{Username: "ferry", Password: "pw", Permissions: &server.Permissions{
		Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.ferry.>"}},
	}}
	srv := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{user, {Username: "reader", Password: "pw"}}
	})
	srv.Login(nats.UserInfo("reader", "pw"))
	srv.CreateStream(t.Context(), "INBOX", "k8s.>")
	config := func(prefix string) *natssink.Config {
		c := natsConfig(hostOf(t, srv.URL()))
		c.Username, c.Password, c.InsecureCredentials, c.InboxPrefix = "ferry", "pw", true, prefix
		c.Stream = &natssink.Stream{Name: "INBOX"}
		return c
	}
	deliver := func(prefix string) error {
		return openSink(t, config(prefix)).Deliver(within(t, 10*time.Second), []sinks.Record{sinktest.NewRecord("a", 1)})
	}
	if err := deliver("_INBOX.ferry"); err != nil {
		t.Error(err)
	}
	if class := sinks.Classify(firstError(deliver(""))); class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized {
		t.Errorf("with the default prefix: got %v, want a missing right", class)
	}
}

// TestNATSDomain: streams are looked for, and made, in the domain.
func TestNATSDomain(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) { o.JetStreamDomain = "hub" })
	config := func(domain, stream string) *natssink.Config {
		c := natsConfig(hostOf(t, srv.URL()))
		c.Domain, c.Subject = domain, "k8s."+strings.ToLower(stream)+".{name}"
		c.Stream = &natssink.Stream{Name: stream, Create: true}
		return c
	}
	sink := openSink(t, config("hub", "HUB"))
	if err := sink.Deliver(within(t, 10*time.Second), []sinks.Record{sinktest.NewRecord("a", 1)}); err != nil {
		t.Fatal(err)
	}
	if err := sink.(sinks.Checker).Check(within(t, 10*time.Second)); err != nil {
		t.Error(err)
	}
	if got, err := srv.ReadAll(t.Context(), "HUB"); err != nil || len(got) != 1 {
		t.Errorf("got %d messages, error %v", len(got), err)
	}
	if err := openSink(t, config("other", "OTHER")).(sinks.Checker).Check(within(t, 10*time.Second)); err == nil {
		t.Error("a domain that is not there: Check found no error")
	}
}

// TestNATSTLSFirst: a server that begins with TLS is reached with tlsFirst only.
func TestNATSTLSFirst(t *testing.T) {
	t.Parallel()
	authority := sinktest.NewAuthority(t)
	srv := natstest.Start(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout, o.TLSHandshakeFirst = authority.ServerConfig("127.0.0.1"), 5, true
	})
	srv.Login(nats.Secure(&tls.Config{RootCAs: authority.Pool()}), nats.TLSHandshakeFirst())
	srv.CreateStream(t.Context(), "FIRST", "k8s.>")
	caFile := filepath.Join(t.TempDir(), "ca.pem")
	write(t, caFile, authority.PEM())
	deliver := func(first bool) error {
		config := natsConfig(hostOf(t, srv.URL()))
		config.TLS, config.TLSFirst = &sinks.TLS{CAFile: caFile}, first
		return openSink(t, config).Deliver(within(t, 10*time.Second), []sinks.Record{sinktest.NewRecord("a", 1)})
	}
	if err := deliver(true); err != nil {
		t.Error(err)
	}
	if class := sinks.Classify(firstError(deliver(false))); class == nil || class.Reason != sinks.ReasonUnreachable {
		t.Errorf("without tlsFirst: got %v", class)
	}
}
