package sinks_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// lines is a log that may be read while it is written.
type lines struct {
	mu  sync.Mutex // guards what follows
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// openLogged opens a sink and returns what it logs.
func openLogged(t *testing.T, config sinks.Config) (sinks.Sink, *lines) {
	t.Helper()
	log := &lines{}
	sink, err := config.Open(t.Context(), sinks.Env{Name: "test", UserAgent: "kubeferry/test", Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(within(t, 5*time.Second)) })
	return sink, log
}

// TestStreamWarnings has a stream for each way in which one loses what it acknowledged: with the first record the log must hold that warning, and no other.
func TestStreamWarnings(t *testing.T) {
	t.Parallel()
	srv := natstest.Start(t, nil)
	for i, test := range []struct {
		name   string
		stream jetstream.StreamConfig
		warns  string
	}{
		{name: "well"},
		{name: "full", stream: jetstream.StreamConfig{MaxAge: time.Hour, MaxMsgs: 7}},
		{name: "interest", stream: jetstream.StreamConfig{Retention: jetstream.InterestPolicy}, warns: "that no consumer wants"},
		{name: "not flushed", stream: jetstream.StreamConfig{PersistMode: jetstream.AsyncPersistMode}, warns: "that is killed loses"},
		{name: "memory", stream: jetstream.StreamConfig{Storage: jetstream.MemoryStorage}, warns: "keeps records in memory"},
	} {
		t.Run(test.name, func(t *testing.T) {
			prefix := fmt.Sprintf("p%d", i)
			test.stream.Name = "S" + prefix
			test.stream.Subjects = []string{prefix + ".>"}
			srv.CreateStreamWith(t.Context(), test.stream)
			config := natsConfig(hostOf(t, srv.URL()))
			config.Subject = prefix + ".{cluster}"
			config.Stream = &natssink.Stream{Name: test.stream.Name}
			sink, log := openLogged(t, config)
			want := 0
			if test.warns != "" {
				want = 1
			}
			deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
			if err := sink.Close(within(t, 5*time.Second)); err != nil {
				t.Error(err)
			}
			if got := strings.Count(log.String(), "level=WARN"); got != want || !strings.Contains(log.String(), test.warns) {
				t.Errorf("got %d warnings, want %d: %q", got, want, test.warns)
			}
			if t.Failed() {
				t.Logf("log:\n%s", log)
			}
		})
	}
}

// TestStreamNoAck is a stream that stores and never acknowledges.
func TestStreamNoAck(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStreamWith(t.Context(), jetstream.StreamConfig{Name: "MUTE", Subjects: []string{"k8s.>"}, NoAck: true})
	config := natsConfig(hostOf(t, srv.URL()))
	config.Stream = &natssink.Stream{Name: "MUTE"}
	sink := openSink(t, config)
	const says = "set no_ack: false"
	for range 2 {
		class := sinks.Classify(firstError(sink.Deliver(t.Context(), []sinks.Record{sinktest.NewRecord("a", 1)})))
		if class == nil || class.Permanent || class.Reason != sinks.ReasonRejected || !strings.Contains(class.Error(), says) {
			t.Errorf("got %v, want it to say %q", class, says)
		}
	}
	if n := srv.StreamInfo(t.Context(), "MUTE").State.Msgs; n != 0 {
		t.Errorf("got %d messages sent that nobody can acknowledge", n)
	}
}

// TestStreamElsewhere has another stream than the one named take the subject.
func TestStreamElsewhere(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStream(t.Context(), "REAL", "k8s.>")
	srv.CreateStream(t.Context(), "NAMED", "other.>")
	config := natsConfig(hostOf(t, srv.URL()))
	config.Stream = &natssink.Stream{Name: "NAMED"}
	sink, log := openLogged(t, config)
	for n := range 3 {
		deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", n+1)})
	}
	const want = `msg="records are stored by another stream than stream.name" stream=NAMED other=REAL`
	if strings.Count(log.String(), want) != 1 {
		t.Errorf("want %q once in the log:\n%s", want, log)
	}
}

// TestStreamReplicas creates the stream in a cluster.
func TestStreamReplicas(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	config := natssink.NewConfig()
	config.URLs = cluster.URLs()
	config.Stream = &natssink.Stream{Name: "COPIES", Create: true, Replicas: 3}
	sink := openSink(t, config)
	if err := sink.(sinks.Checker).Check(within(t, 15*time.Second)); err != nil {
		t.Error(err)
	}
	deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
	if got := cluster.StreamInfo(within(t, 15*time.Second), "COPIES").Config.Replicas; got != 3 {
		t.Errorf("got %d replicas, want 3", got)
	}
}

// TestNATSServerName goes by a name to a server whose certificate has no address.
func TestNATSServerName(t *testing.T) {
	authority := sinktest.NewAuthority(t)
	caFile := t.TempDir() + "/ca.pem"
	write(t, caFile, authority.PEM())
	srv := natstest.Start(t, func(o *server.Options) {
		o.TLSConfig, o.TLSTimeout = authority.ServerConfig("nats.example.com"), 5
	})
	for name, works := range map[string]bool{"": false, "nats.example.com": true, "other.example.com": false} {
		config := natsConfig(hostOf(t, srv.URL()))
		config.JetStream = false
		config.TLS = &sinks.TLS{CAFile: caFile, ServerName: name}
		err := firstError(openSink(t, config).Deliver(within(t, 15*time.Second), []sinks.Record{sinktest.NewRecord("a", 1)}))
		if works != (err == nil) || err != nil && !strings.Contains(err.Error(), "certificate") {
			t.Errorf("serverName %q: got %v", name, err)
		}
	}
}
