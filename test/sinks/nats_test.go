package sinks_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
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
			config.JetStream, config.Timeout = jetStream, time.Minute
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
			if took := time.Since(start); took > 20*time.Second {
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
	t.Parallel()
	user := func(permissions *server.Permissions) func(o *server.Options) {
		return func(o *server.Options) {
			o.Users = []*server.User{{Username: "admin", Password: natsPassword}, {Username: "u", Password: natsPassword, Permissions: permissions}}
		}
	}
	srv := natstest.Start(t, user(&server.Permissions{Subscribe: &server.SubjectPermission{Deny: []string{">"}}}))
	srv.Login(nats.UserInfo("admin", natsPassword))
	srv.CreateStream(t.Context(), "K8S", "k8s.>")
	config := natsConfig(hostOf(t, srv.URL()))
	config.Username, config.Password = "u", natsPassword
	sink := openSink(t, config)
	deliverUntil(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)}, func(class *sinks.Error) bool {
		return class.Reason == sinks.ReasonUnauthorized
	})
	// With the right, records are acknowledged again, over another connection: the server keeps this one as it is.
	srv.Reload(user(nil))
	var err error
	for ctx := within(t, time.Minute); ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		if err = sink.Deliver(ctx, []sinks.Record{sinktest.NewRecord("a", 1)}); err == nil {
			return
		}
	}
	t.Error(firstError(err))
}

// TestNATSLeastRights is a user with the rights that docs/nats.md lists.
func TestNATSLeastRights(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{{Username: "least", Password: natsPassword, Permissions: &server.Permissions{
			Publish:   &server.SubjectPermission{Allow: []string{"k8s.>", "$JS.API.STREAM.INFO.MADE", "$JS.API.STREAM.CREATE.MADE"}},
			Subscribe: &server.SubjectPermission{Allow: []string{"_INBOX.>"}},
		}}}
	})
	config := natsConfig(hostOf(t, srv.URL()))
	config.Username, config.Password = "least", natsPassword
	config.Stream = &natssink.Stream{Name: "MADE", Create: true}
	sink := openSink(t, config)
	for range 2 { // before the stream is there, and after
		if err := sink.(sinks.Checker).Check(t.Context()); err != nil {
			t.Error(err)
		}
		if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)}); err != nil {
			t.Error(firstError(err))
		}
	}
}

// TestNATSBlind is a user who may publish and not look at streams: it delivers all the same.
func TestNATSBlind(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, func(o *server.Options) {
		o.Users = []*server.User{
			{Username: "ferry", Password: natsPassword},
			{Username: "blind", Password: natsPassword, Permissions: &server.Permissions{
				Publish: &server.SubjectPermission{Deny: []string{"$JS.API.>"}},
			}},
		}
	})
	srv.Login(nats.UserInfo("ferry", natsPassword))
	srv.CreateStream(t.Context(), "UNSEEN", "k8s.>")
	config := natsConfig(hostOf(t, srv.URL()))
	config.Username, config.Password = "blind", natsPassword
	config.Stream = &natssink.Stream{Name: "UNSEEN"}
	sink := openSink(t, config)
	for n := range 3 {
		if err := sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", n+1)}); err != nil {
			t.Fatal(firstError(err))
		}
	}
}

func TestStream(t *testing.T) {
	srv := natstest.Start(t, nil)
	config := natsConfig(hostOf(t, srv.URL()))
	config.Stream = &natssink.Stream{Name: "MADE", Create: true, MaxBytes: 64 << 20, MaxAge: time.Hour}
	if err := openSink(t, config).Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)}); err != nil {
		t.Fatal(err)
	}
	conn, err := nats.Connect(srv.URL(), nats.Timeout(30*time.Second))
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
}

// TestNATSStuck fills every buffer between the sink and a server that reads nothing.
func TestNATSStuck(t *testing.T) {
	for _, jetStream := range []bool{true, false} {
		t.Run(fmt.Sprintf("jetstream %t", jetStream), func(t *testing.T) {
			srv := natstest.Start(t, func(o *server.Options) { o.MaxPayload = 8 << 20 })
			srv.CreateStream(t.Context(), "STUCK", "k8s.>")
			link := newProxy(t)
			link.ForwardTo(hostOf(t, srv.URL()))
			config := natsConfig(link.Addr())
			config.JetStream, config.Timeout = jetStream, time.Minute // which bounds a write
			sink := openSink(t, config)
			deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("z", 1)})
			link.Stall()
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
			if took := time.Since(start); took > 20*time.Second {
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
			if took := time.Since(start); took > 20*time.Second {
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
