package sinks_test

import (
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

const (
	natsUser     = "ferry-user"
	natsPassword = "pa55-w0rd-0f-th3-su1t3"
)

// natsLogin is a server's authentication: it can be denied, and takes the right to publish to some subjects away.
type natsLogin struct {
	denied     atomic.Bool
	restricted atomic.Bool
}

// Check implements [server.Authentication].
func (l *natsLogin) Check(c server.ClientAuthentication) bool {
	opts := c.GetOpts()
	if opts.Username == "reader" && opts.Password == natsPassword {
		return true
	}
	if l.denied.Load() || opts.Username != natsUser || opts.Password != natsPassword {
		return false
	}
	if l.restricted.Load() {
		c.RegisterUser(&server.User{Permissions: &server.Permissions{
			Publish: &server.SubjectPermission{Deny: []string{"k8s.forbidden.>"}},
		}})
	}
	return true
}

// startNATS runs a server that only [natsLogin] lets in. natstest itself logs in as the reader.
func startNATS(t *testing.T, login *natsLogin) *natstest.Server {
	t.Helper()
	return natstest.Start(t, func(o *server.Options) {
		o.Username, o.Password = "reader", natsPassword
		o.CustomClientAuthentication = login
	})
}

func natsConfig(addr string) *natssink.Config {
	c := natssink.NewConfig()
	c.URLs = []string{"nats://" + addr}
	c.InsecureCredentials = true
	return c
}

func hostOf(t *testing.T, address string) string {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return u.Host
}

// natsStored is what a message holds of its record; NATS has no keys.
func natsStored(header nats.Header, body []byte) sinktest.Stored {
	headers := map[string]string{}
	for name, values := range header {
		headers[strings.ToLower(name)] = values[0]
	}
	return sinktest.Stored{
		DedupID: header.Get(nats.MsgIdHdr), Headers: headers, Attributes: sinktest.DecodeAttributes(headers), Body: body,
	}
}

func TestJetStreamSuite(t *testing.T) {
	t.Parallel()
	const stream = "SUITE"
	everything, nothing := []string{"k8s.>"}, []string{"elsewhere.>"}
	sinktest.Run(t, sinktest.Harness{Kind: natssink.Kind(), New: func(t *testing.T) *sinktest.Peer {
		login := &natsLogin{}
		srv := startNATS(t, login)
		config := jetstream.StreamConfig{Name: stream, Subjects: []string{"k8s.test.>"}}
		srv.CreateStreamWith(t.Context(), config)
		link := newProxy(t)
		link.ForwardTo(hostOf(t, srv.URL()))
		subjects := func(subjects []string) {
			conn, err := nats.Connect(srv.URL(), nats.UserInfo("reader", natsPassword), nats.Timeout(30*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			js, err := jetstream.New(conn)
			if err != nil {
				t.Fatal(err)
			}
			config.Subjects = subjects
			if _, err := js.UpdateStream(t.Context(), config); err != nil {
				t.Fatal(err)
			}
		}
		return &sinktest.Peer{
			Config: func() sinks.Config {
				c := natsConfig(link.Addr())
				c.Username, c.Password = natsUser, natsPassword
				c.Stream = &natssink.Stream{Name: stream}
				return c
			},
			Stored: func() (stored []sinktest.Stored) {
				messages, err := srv.ReadAll(within(t, 20*time.Second), stream)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range messages {
					stored = append(stored, natsStored(m.Header, m.Data))
				}
				return stored
			},
			Fail:       func() { subjects(nothing) },
			FailRecord: func(r *sinks.Record) { r.Fields.Cluster = "nobody" }, // outside the stream's subjects
			Poison:     appendBlanks(2 << 20),
			Hang:       link.Stall,
			Leave:      link.Leave,
			Deny:       func() { login.denied.Store(true) },
			Mend: func() {
				link.Come()
				login.denied.Store(false)
				subjects(everything)
			},
			Secrets: []string{natsPassword},
			Cannot:  map[sinktest.Ability]string{sinktest.Key: "NATS messages have no key"},
		}
	}})
}

func TestCoreNATSSuite(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, sinktest.Harness{Kind: natssink.Kind(), New: func(t *testing.T) *sinktest.Peer {
		login := &natsLogin{}
		login.restricted.Store(true)
		srv := startNATS(t, login)
		listener := listen(t, srv, "k8s.>")
		link := newProxy(t)
		link.ForwardTo(hostOf(t, srv.URL()))
		return &sinktest.Peer{
			Config: func() sinks.Config {
				c := natsConfig(link.Addr())
				c.JetStream = false
				c.Username, c.Password = natsUser, natsPassword
				return c
			},
			Stored:     listener.stored,
			FailRecord: func(r *sinks.Record) { r.Fields.Cluster = "forbidden" },
			Poison:     appendBlanks(2 << 20),
			Hang:       link.Stall,
			Leave:      link.Leave,
			Deny:       func() { login.denied.Store(true) },
			Mend: func() {
				link.Come()
				login.denied.Store(false)
				if login.restricted.Swap(false) {
					link.Cut() // rights are given at login
				}
			},
			Secrets: []string{natsPassword},
			Cannot: map[sinktest.Ability]string{
				sinktest.Key:  "NATS messages have no key",
				sinktest.Fail: "core NATS has nobody who could refuse everything but the login",
			},
		}
	}})
}

// listener is a plain subscriber.
type listener struct {
	t    *testing.T
	conn *nats.Conn

	mu       sync.Mutex // guards what follows
	messages []*nats.Msg
}

func listen(t *testing.T, srv *natstest.Server, subject string) *listener {
	t.Helper()
	conn, err := nats.Connect(srv.URL(), nats.UserInfo("reader", natsPassword), nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	l := &listener{t: t, conn: conn}
	if _, err := conn.Subscribe(subject, func(m *nats.Msg) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.messages = append(l.messages, m)
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return l
}

// stored returns what arrived so far. nats.Conn.Barrier waits for the subscriber's function.
func (l *listener) stored() (stored []sinktest.Stored) {
	l.t.Helper()
	if err := l.conn.Flush(); err != nil {
		l.t.Fatal(err)
	}
	done := make(chan struct{})
	if err := l.conn.Barrier(func() { close(done) }); err != nil {
		l.t.Fatal(err)
	}
	<-done
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range l.messages {
		stored = append(stored, natsStored(m.Header, m.Data))
	}
	return stored
}
