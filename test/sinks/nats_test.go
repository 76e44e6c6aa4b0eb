package sinks_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// TestJetStreamRestart restarts the server and breaks the connection in the middle of a load: nothing is lost, and
// nothing is stored twice.
func TestJetStreamRestart(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStream(t.Context(), "LOAD", "k8s.>")
	link := newProxy(t)
	link.forwardTo(hostOf(t, srv.URL()))
	config := natsConfig(link.addr)
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 50}
	l.run(within(t, time.Minute), t, sink, config.Limits(), l.total()/4, func() {
		srv.Restart()
		for range 5 {
			time.Sleep(20 * time.Millisecond) // somewhere in the load
			link.cut()
		}
	})
	messages, err := srv.ReadAll(t.Context(), "LOAD")
	if err != nil {
		t.Fatal(err)
	}
	if doubles := l.check(t, arrivals(messages)); doubles > 0 {
		t.Errorf("%d records are stored twice", doubles)
	}
}

// TestCoreNATSRestart breaks the connection: what was on its way is sent again.
func TestCoreNATSRestart(t *testing.T) {
	login := &natsLogin{}
	srv := startNATS(t, login)
	listener := listen(t, srv, "k8s.>")
	link := newProxy(t)
	link.forwardTo(hostOf(t, srv.URL()))
	config := natsConfig(link.addr)
	config.JetStream = false
	config.Username, config.Password = natsUser, natsPassword
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 50}
	l.run(within(t, time.Minute), t, sink, config.Limits(), l.total()/8, func() {
		for range 20 {
			time.Sleep(5 * time.Millisecond) // somewhere in the load
			link.cut()
		}
	})
	var got []arrival
	for _, stored := range listener.stored() {
		got = append(got, arrivalOf(stored.Headers["ce-subject"], stored.DedupID))
	}
	l.check(t, got)
}

func arrivals(messages []natstest.Message) (got []arrival) {
	for _, m := range messages {
		got = append(got, arrivalOf(m.Header["ce-subject"][0], m.Header.Get(nats.MsgIdHdr)))
	}
	return got
}

func arrivalOf(key, dedupID string) arrival {
	return arrival{nameOf(key), strings.TrimPrefix(dedupID, "suite/")}
}

func TestJetStreamDuplicate(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStream(t.Context(), "DUPLICATES", "k8s.>")
	sink := openSink(t, natsConfig(hostOf(t, srv.URL())))
	for range 3 {
		if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)}); err != nil {
			t.Fatal(err)
		}
	}
	messages, err := srv.ReadAll(t.Context(), "DUPLICATES")
	if err != nil {
		t.Fatal(err)
	}
	if len(messages) != 1 {
		t.Fatalf("got %d messages stored, want 1", len(messages))
	}
	m, r := messages[0], sinktest.NewRecord("a", 1)
	if want := "k8s.test.core.configmaps.shop.a"; m.Subject != want {
		t.Errorf("got subject %s, want %s", m.Subject, want)
	}
	if m.Header.Get("Content-Type") != r.ContentType || m.Header.Get(nats.MsgIdHdr) != r.DedupID || !bytes.Equal(m.Data, r.Body) {
		t.Errorf("got headers %v, data %q", m.Header, m.Data)
	}
}

// TestJetStreamErrors makes the server refuse one record among others.
func TestJetStreamErrors(t *testing.T) {
	record := func(name string, change func(*sinks.Record)) sinks.Record {
		r := sinktest.NewRecord(name, 1)
		change(&r)
		return r
	}
	for _, test := range []struct {
		name      string
		stream    jetstream.StreamConfig
		bad       sinks.Record
		reason    sinks.Reason
		permanent bool
		says      []string
	}{
		{
			name: "over max_payload", bad: record("b", appendBlanks(1<<20)), reason: sinks.ReasonTooLarge, permanent: true,
			says: []string{"1048576", "k8s.test.core.configmaps.shop.b"},
		},
		{
			name: "over the stream's limit", stream: jetstream.StreamConfig{MaxMsgSize: 2048},
			bad: record("b", appendBlanks(2048)), reason: sinks.ReasonTooLarge, permanent: true,
		},
		{
			name: "headers over 64 KiB", reason: sinks.ReasonTooLarge, permanent: true,
			bad: record("b", func(r *sinks.Record) { r.Headers["ce-long"] = strings.Repeat("x", 70_000) }),
		},
		{
			name: "no stream", bad: record("b", func(r *sinks.Record) { r.Fields.Cluster = "other" }), reason: sinks.ReasonNotFound,
			says: []string{`no stream takes subject "k8s.other.core.configmaps.shop.b"`},
		},
		{
			name: "too long a subject", reason: sinks.ReasonEncode, permanent: true,
			bad: record("b", func(r *sinks.Record) { r.Fields.Name = strings.Repeat("x", 5000) }),
		},
		{
			name: "subject full", reason: sinks.ReasonUnavailable,
			stream: jetstream.StreamConfig{Discard: jetstream.DiscardNew, DiscardNewPerSubject: true, MaxMsgsPerSubject: 1},
			bad:    record("a", func(r *sinks.Record) { r.DedupID += "/another" }),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			srv := natstest.Start(t, nil)
			test.stream.Name, test.stream.Subjects = "ERRORS", []string{"k8s.test.>"}
			srv.CreateStreamWith(t.Context(), test.stream)
			sink := openSink(t, natsConfig(hostOf(t, srv.URL())))
			deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
			batch := []sinks.Record{sinktest.NewRecord("x", 1), test.bad, sinktest.NewRecord("y", 1)}
			errs := sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch))
			if errs[0] != nil || errs[2] != nil {
				t.Errorf("neighbours: %v, %v", errs[0], errs[2])
			}
			class := sinks.Classify(errs[1])
			if class == nil || class.Reason != test.reason || class.Permanent != test.permanent {
				t.Fatalf("got %+v, want %s, permanent %t", class, test.reason, test.permanent)
			}
			t.Log(class)
			for _, part := range test.says {
				if !strings.Contains(class.Error(), part) {
					t.Errorf("got %q, want it to say %s", class, part)
				}
			}
		})
	}
}

func TestJetStreamFull(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStreamWith(t.Context(), jetstream.StreamConfig{
		Name: "FULL", Subjects: []string{"k8s.>"}, MaxBytes: 4096, Discard: jetstream.DiscardNew,
	})
	sink := openSink(t, natsConfig(hostOf(t, srv.URL())))
	var batch []sinks.Record
	for n := range 50 {
		batch = append(batch, sinktest.NewRecord(fmt.Sprintf("object-%d", n), 1))
	}
	full := 0
	for _, err := range sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch)) {
		if class := sinks.Classify(err); class != nil {
			full++
			if class.Permanent || class.Reason != sinks.ReasonUnavailable {
				t.Fatalf("got %s, permanent %t: %v", class.Reason, class.Permanent, class)
			}
		}
	}
	if full == 0 || full == 50 {
		t.Errorf("got %d of 50 refused", full)
	}
}

// TestNATSForbidden publishes to a subject that the user has no right to. JetStream never answers, core NATS answers
// on the side.
func TestNATSForbidden(t *testing.T) {
	for _, jetStream := range []bool{true, false} {
		t.Run(fmt.Sprintf("jetstream %t", jetStream), func(t *testing.T) {
			login := &natsLogin{}
			login.restricted.Store(true)
			srv := startNATS(t, login)
			srv.CreateStream(t.Context(), "FORBIDDEN", "k8s.>")
			config := natsConfig(hostOf(t, srv.URL()))
			config.JetStream = jetStream
			config.Username, config.Password = natsUser, natsPassword
			sink := openSink(t, config)
			var batch []sinks.Record
			for n := range 40 {
				r := sinktest.NewRecord(fmt.Sprintf("object-%d", n), 1)
				if n%2 == 1 {
					r.Fields.Cluster = "forbidden"
				}
				batch = append(batch, r)
			}
			start := time.Now()
			errs := sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch))
			if took := time.Since(start); took > 2*time.Second {
				t.Errorf("Deliver took %v", took)
			}
			for i, err := range errs {
				class := sinks.Classify(err)
				if forbidden := i%2 == 1; forbidden != (class != nil) {
					t.Errorf("record %d: got %v", i, err)
				} else if forbidden && (class.Permanent || class.Reason != sinks.ReasonUnauthorized) {
					t.Errorf("record %d: got %s, permanent %t", i, class.Reason, class.Permanent)
				}
			}
		})
	}
}

// TestNATSNoInbox is a user who may publish and not receive acknowledgements.
func TestNATSNoInbox(t *testing.T) {
	srv := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{
			Username: "u", Password: natsPassword,
			Permissions: &server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{">"}}},
		}}
	})
	config := natsConfig(hostOf(t, srv.URL()))
	config.Username, config.Password = "u", natsPassword
	err := firstError(openSink(t, config).Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)}))
	class := sinks.Classify(err)
	if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized {
		t.Fatalf("got %+v, want unauthorized", class)
	}
	t.Log(class)
}

func TestStream(t *testing.T) {
	srv := natstest.Start(t, nil)
	config := natsConfig(hostOf(t, srv.URL()))
	config.Stream = &natssink.Stream{Name: "MADE", Create: true, MaxBytes: 64 << 20, MaxAge: time.Hour}
	if err := openSink(t, config).Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)}); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(srv.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "MADE")
	if err != nil {
		t.Fatal(err)
	}
	got := stream.CachedInfo().Config
	if !slices.Equal(got.Subjects, []string{"k8s.*.*.*.*.*"}) || got.Duplicates != 10*time.Minute || got.MaxAge != time.Hour ||
		got.MaxBytes != 64<<20 || got.Replicas != 1 || got.Discard != jetstream.DiscardOld || got.Storage != jetstream.FileStorage {
		t.Errorf("got %+v", got)
	}

	t.Run("made again", func(t *testing.T) {
		sink := openSink(t, config)
		deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 2)})
		if err := js.DeleteStream(t.Context(), "MADE"); err != nil {
			t.Fatal(err)
		}
		deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 3)})
	})

	t.Run("warnings", func(t *testing.T) {
		srv.CreateStreamWith(t.Context(), jetstream.StreamConfig{Name: "OTHER", Subjects: []string{"x.test.core.>"}, MaxMsgs: 10})
		config := natsConfig(hostOf(t, srv.URL()))
		config.Subject = "x.{cluster}.{group}.{resource}"
		config.Stream = &natssink.Stream{Name: "OTHER", Create: true}
		var log bytes.Buffer
		sink, err := config.Open(t.Context(), sinks.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
		deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 2)})
		if err := sink.Close(t.Context()); err != nil {
			t.Error(err)
		}
		for _, want := range []string{"may not take every record", "duplicate window", "drops records by limits"} {
			if strings.Count(log.String(), want) != 1 {
				t.Errorf("want %q once in the log:\n%s", want, &log)
			}
		}
	})
}

// TestNATSRotation changes each kind of credential, and the authority, while the sink is open.
func TestNATSRotation(t *testing.T) {
	type user struct {
		pair nkeys.KeyPair
		seed []byte
		name string
	}
	newUser := func() user {
		pair, err := nkeys.CreateUser()
		if err != nil {
			t.Fatal(err)
		}
		seed, _ := pair.Seed()
		name, _ := pair.PublicKey()
		return user{pair, seed, name}
	}
	right, wrong := newUser(), newUser()
	for _, test := range []struct {
		name         string
		server       func(*server.Options)
		config       func(c *natssink.Config, file string)
		wrong, right []byte
	}{
		{
			name:   "token",
			server: func(o *server.Options) { o.Authorization = natsPassword },
			config: func(c *natssink.Config, file string) { c.TokenFile = file },
			wrong:  []byte("not-it"), right: []byte(natsPassword + "\n"),
		},
		{
			name:   "password",
			server: func(o *server.Options) { o.Username, o.Password = natsUser, natsPassword },
			config: func(c *natssink.Config, file string) { c.Username, c.PasswordFile = natsUser, file },
			wrong:  []byte("not-it"), right: []byte(natsPassword + "\n"),
		},
		{
			name:   "nkey",
			server: func(o *server.Options) { o.Nkeys = []*server.NkeyUser{{Nkey: right.name}} },
			config: func(c *natssink.Config, file string) { c.NkeySeedFile = file },
			wrong:  wrong.seed, right: right.seed,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			files := newAuthority(t)
			srv := natstest.Start(t, func(o *server.Options) {
				test.server(o)
				o.TLSConfig, o.TLSTimeout = files.server(t), 2
			})
			dir := t.TempDir()
			caFile, secretFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "secret")
			write(t, caFile, newAuthority(t).pem)
			config := natsConfig(hostOf(t, srv.URL()))
			config.JetStream = false
			config.TLS = &sinks.TLS{CAFile: caFile}
			test.config(config, secretFile)
			sink := openSink(t, config)
			batch := []sinks.Record{sinktest.NewRecord("a", 1)}
			deliverUntil(t, sink, batch, func(class *sinks.Error) bool { // the file is not there yet
				return class.Reason == sinks.ReasonUnauthorized && strings.Contains(class.Error(), secretFile)
			})
			write(t, secretFile, test.wrong)
			deliverUntil(t, sink, batch, func(class *sinks.Error) bool {
				return class.Reason == sinks.ReasonUnreachable && strings.Contains(class.Error(), "unknown authority")
			})
			write(t, caFile, files.pem)
			deliverUntil(t, sink, batch, func(class *sinks.Error) bool { return class.Reason == sinks.ReasonUnauthorized })
			write(t, secretFile, test.right)
			t.Logf("delivered %v after the files were right", deliverAll(t, sink, batch))
		})
	}
}

// TestNATSStuck fills every buffer between the sink and a server that reads nothing.
func TestNATSStuck(t *testing.T) {
	for _, jetStream := range []bool{true, false} {
		t.Run(fmt.Sprintf("jetstream %t", jetStream), func(t *testing.T) {
			srv := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 8 << 20 })
			srv.CreateStream(t.Context(), "STUCK", "k8s.>")
			link := newProxy(t)
			link.forwardTo(hostOf(t, srv.URL()))
			config := natsConfig(link.addr)
			config.JetStream = jetStream
			sink := openSink(t, config)
			deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("z", 1)})
			link.hang()
			var batch []sinks.Record
			for n := range 32 {
				r := sinktest.NewRecord(fmt.Sprintf("object-%d", n), 1)
				appendBlanks(2 << 20)(&r)
				batch = append(batch, r)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			defer cancel()
			start := time.Now()
			class := sinks.Classify(firstError(sink.Deliver(ctx, batch)))
			if took := time.Since(start); took > time.Second {
				t.Errorf("Deliver returned after %v", took)
			}
			if class == nil || class.Permanent || class.Reason != sinks.ReasonTimeout {
				t.Errorf("got %v", class)
			}
			for i := range batch { // they are the pipeline's again; the race detector watches
				clear(batch[i].Body)
			}
			start = time.Now()
			ctx, cancel = context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_ = sink.Close(ctx)
			if took := time.Since(start); took > 1500*time.Millisecond {
				t.Errorf("Close took %v", took)
			}
		})
	}
}

func BenchmarkJetStream(b *testing.B) {
	srv := natstest.Start(b, nil)
	srv.CreateStream(b.Context(), "BENCH", "k8s.>")
	u := strings.TrimPrefix(srv.URL(), "nats://")
	config := natsConfig(u)
	benchmark(b, openSink(b, config), config)
}

func BenchmarkCoreNATS(b *testing.B) {
	srv := natstest.Start(b, nil)
	config := natsConfig(strings.TrimPrefix(srv.URL(), "nats://"))
	config.JetStream = false
	benchmark(b, openSink(b, config), config)
}
