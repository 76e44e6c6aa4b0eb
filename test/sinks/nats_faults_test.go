package sinks_test

import (
	"context"
	"fmt"
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

// TestJetStreamKilled kills the server, starts it again and breaks the connection, all in the middle of a load: nothing
// is lost, and nothing is stored twice.
func TestJetStreamKilled(t *testing.T) {
	srv := natstest.StartCluster(t, 1)
	srv.CreateStream(t.Context(), "LOAD", "k8s.>")
	link := newProxy(t)
	link.ForwardTo(hostOf(t, srv.URLs()[0]))
	config := natsConfig(link.Addr())
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 200}
	l.run(within(t, time.Minute), t, sink, config.Limits(), l.total()/8, func() {
		srv.Kill(0)
		l.awaitErrors(t, 4)
		srv.Revive(0)
		for n := range 5 {
			l.await(t, l.total()/2+n*l.total()/20)
			link.Cut()
		}
	})
	noDoubles(t, l, readStream(t, srv, "LOAD"))
}

// TestJetStreamLeaderLost kills the leader of a stream with three replicas in the middle of a load.
func TestJetStreamLeaderLost(t *testing.T) {
	t.Parallel()
	cluster := natstest.StartCluster(t, 3)
	cluster.CreateStreamWith(t.Context(), jetstream.StreamConfig{Name: "LOAD", Subjects: []string{"k8s.>"}, Replicas: 3})
	config := natssink.NewConfig()
	config.URLs = cluster.URLs()
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 100}
	l.run(within(t, 2*time.Minute), t, sink, config.Limits(), l.total()/4, func() {
		leader := cluster.Leader(t.Context(), "LOAD")
		cluster.Kill(leader)
		l.await(t, l.total()/2)
		cluster.Revive(leader)
	})
	noDoubles(t, l, readStream(t, cluster, "LOAD"))
}

// TestJetStreamSlow has a stream that takes its time: it lets only a few messages wait and refuses what is more, and
// then for a while answers later than the sink waits, so that what was stored is sent again.
func TestJetStreamSlow(t *testing.T) {
	srv := natstest.Start(t, func(o *server.Options) {
		o.StreamMaxBufferedMsgs = 20
		o.SyncAlways = true
	})
	srv.CreateStream(t.Context(), "SLOW", "k8s.>")
	link := newProxy(t)
	link.ForwardTo(hostOf(t, srv.URL()))
	config := natsConfig(link.Addr())
	config.Timeout = 300 * time.Millisecond
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 50, perKey: 10}
	l.run(within(t, time.Minute), t, sink, config.Limits(), l.total()/4, func() {
		for range 3 {
			link.Stall()
			l.awaitErrors(t, 4)
			link.Come()
			l.await(t, l.acknowledged()+l.total()/10)
		}
	})
	noDoubles(t, l, readStream(t, srv, "SLOW"))
	if l.reasons[sinks.ReasonTimeout] == 0 || l.reasons[sinks.ReasonThrottled] == 0 {
		t.Errorf("got errors %v, want some of %s and %s", l.reasons, sinks.ReasonTimeout, sinks.ReasonThrottled)
	}
}

// TestJetStreamFull fills a stream that the sink created to refuse what is over its limit, and then makes room.
func TestJetStreamFull(t *testing.T) {
	srv := natstest.Start(t, nil)
	config := natsConfig(hostOf(t, srv.URL()))
	config.Stream = &natssink.Stream{Name: "FULL", Create: true, MaxBytes: 64 << 10, Discard: "new"}
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 20}
	l.run(within(t, time.Minute), t, sink, config.Limits(), 1, func() {
		l.awaitErrors(t, 20)
		stream := srv.StreamInfo(t.Context(), "FULL").Config
		stream.MaxBytes = 64 << 20
		srv.UpdateStream(t.Context(), stream)
	})
	noDoubles(t, l, readStream(t, srv, "FULL"))
	if len(l.reasons) != 1 || l.reasons[sinks.ReasonUnavailable] == 0 {
		t.Errorf("got errors %v, want only %s", l.reasons, sinks.ReasonUnavailable)
	}
}

// TestJetStreamBounded has a server that never answers: what is on its way stays within twice what all calls may have,
// and a call beyond that fails at once, not after its time-out.
func TestJetStreamBounded(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStream(t.Context(), "BOUNDED", "k8s.>")
	link := newProxy(t)
	link.ForwardTo(hostOf(t, srv.URL()))
	config := natsConfig(link.Addr())
	config.Batch.MaxRecords, config.Concurrency, config.Timeout = 10, 2, time.Minute
	sink := openSink(t, config)
	var batch []sinks.Record
	for n := range config.Batch.MaxRecords {
		batch = append(batch, sinktest.NewRecord(fmt.Sprintf("object-%d", n), 1))
	}
	deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("z", 1)})
	link.Stall()
	// A call whose time is over before it is sent, on a busy machine, puts nothing on its way.
	full, deadline := false, time.Now().Add(time.Minute)
	for calls := 0; !full; calls++ {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		class := sinks.Classify(firstError(sink.Deliver(ctx, batch)))
		cancel()
		switch full = class != nil && class.Reason == sinks.ReasonUnavailable; {
		case full && calls < 4:
			t.Fatalf("call %d is refused: %v", calls, class)
		case !full && (class == nil || class.Reason != sinks.ReasonTimeout):
			t.Fatalf("got %v, want a time-out", class)
		case time.Now().After(deadline):
			t.Fatalf("%d calls were not refused", calls)
		}
	}
	start := time.Now()
	if class := sinks.Classify(firstError(sink.Deliver(t.Context(), batch))); class == nil || class.Permanent || class.Reason != sinks.ReasonUnavailable {
		t.Errorf("got %v, want it not to be sent", class)
	}
	t.Logf("refused after %v", time.Since(start).Round(time.Millisecond))
	link.Come()
	deliverAll(t, sink, batch)
	if messages := readStream(t, srv, "BOUNDED"); len(messages) != 1+len(batch) {
		t.Errorf("got %d messages, want %d", len(messages), 1+len(batch))
	}
}

// readStream returns what a stream stores.
func readStream(t *testing.T, from interface {
	ReadAll(ctx context.Context, stream string) ([]natstest.Message, error)
}, stream string,
) []natstest.Message {
	t.Helper()
	messages, err := from.ReadAll(within(t, 30*time.Second), stream)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

func noDoubles(t *testing.T, l *load, messages []natstest.Message) {
	t.Helper()
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
	link.ForwardTo(hostOf(t, srv.URL()))
	config := natsConfig(link.Addr())
	config.JetStream = false
	config.Username, config.Password = natsUser, natsPassword
	sink := openSink(t, config)
	l := &load{workers: 4, keysEach: 10, perKey: 50}
	l.run(within(t, time.Minute), t, sink, config.Limits(), l.total()/8, func() {
		for range 20 {
			l.await(t, l.acknowledged()+l.total()/50)
			link.Cut()
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
