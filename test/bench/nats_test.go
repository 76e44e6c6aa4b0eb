package bench_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
	natssink "github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/test/natstest"
)

func TestJetStream(t *testing.T) {
	srv := natstest.StartCluster(t, 1)
	srv.CreateStream(t.Context(), "DIRECT", "direct.>")
	srv.CreateStream(t.Context(), "SINK", "sink.>")
	js, err := jetstream.New(dial(t, srv), jetstream.WithPublishAsyncMaxPending(2*workers*batchSize))
	if err != nil {
		t.Fatal(err)
	}
	config := natsConfig(srv)
	direct := func(ctx context.Context, batch []sinks.Record) error {
		futures := make([]jetstream.PubAckFuture, len(batch))
		for i := range batch {
			var err error
			if futures[i], err = js.PublishMsgAsync(message(&batch[i])); err != nil {
				return err
			}
		}
		for _, future := range futures {
			select {
			case <-future.Ok():
			case err := <-future.Err():
				return err
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	}
	want, share := compare(t, direct, openSink(t, config).Deliver)
	fast(t, share)
	for _, stream := range []string{"DIRECT", "SINK"} {
		if got := srv.StreamInfo(t.Context(), stream).State.Msgs; got != uint64(want) {
			t.Errorf("%s: got %d messages, want %d", stream, got, want)
		}
	}
}

func TestCoreNATS(t *testing.T) {
	srv := natstest.StartCluster(t, 1)
	conn := dial(t, srv)
	config := natsConfig(srv)
	config.JetStream = false
	direct := func(ctx context.Context, batch []sinks.Record) error {
		for i := range batch {
			if err := conn.PublishMsg(message(&batch[i])); err != nil {
				return err
			}
		}
		return conn.FlushWithContext(ctx)
	}
	_, share := compare(t, direct, openSink(t, config).Deliver)
	fast(t, share)
}

func natsConfig(srv *natstest.Cluster) *natssink.Config {
	c := natssink.NewConfig()
	c.URLs, c.Subject = srv.URLs(), "sink.{cluster}.{group}.{resource}.{namespace}.{name}"
	return c
}

func dial(t *testing.T, srv *natstest.Cluster) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(strings.Join(srv.URLs(), ","), nats.Timeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// message is what a program makes that calls the library itself.
func message(r *sinks.Record) *nats.Msg {
	f := &r.Fields
	return &nats.Msg{
		Subject: fmt.Sprintf("direct.%s.%s.%s.%s.%s", f.Cluster, f.Group, f.Resource, f.Namespace, f.Name),
		Header:  nats.Header{"Content-Type": {r.ContentType}, nats.MsgIdHdr: {r.DedupID}},
		Data:    r.Body,
	}
}
