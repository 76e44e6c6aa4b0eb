package natstest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
	"github.com/kubeferry/kubeferry/test/natstest"
)

func TestMain(m *testing.M) {
	asyncapi.Anything = true
	assets.Must(natstest.Prepare)
	goleak.VerifyTestMain(m)
}

func TestStreamSurvivesARestart(t *testing.T) {
	s := natstest.Start(t, nil)
	s.CreateStream(t.Context(), "changes", "k8s.>")

	empty, err := s.ReadAll(t.Context(), "changes")
	if err != nil || len(empty) != 0 {
		t.Fatalf("got %d messages and %v from a new stream", len(empty), err)
	}
	url := s.URL()
	publish(t, s, 0, 20)
	s.Restart()
	if s.URL() != url {
		t.Errorf("the URL changed from %s to %s", url, s.URL())
	}
	publish(t, s, 20, 10)

	got, err := s.ReadAll(t.Context(), "changes")
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 30 {
		t.Fatalf("got %d messages, want 30", len(got))
	}
	for i, m := range got {
		if m.Sequence != uint64(i+1) || string(m.Data) != fmt.Sprint("data-", i) ||
			m.Header.Get(nats.MsgIdHdr) != fmt.Sprint("id-", i) || m.Subject != "k8s.core.pods" {
			t.Errorf("message %d: got %+v", i, m)
		}
	}
}

func TestConsumeEndsWithItsContext(t *testing.T) {
	s := natstest.Start(t, nil)
	s.CreateStream(t.Context(), "changes", "k8s.>")
	publish(t, s, 0, 3)
	ctx, cancel := context.WithCancel(t.Context()) // a time-out would be over before a busy machine has all
	defer cancel()
	got, err := s.Consume(ctx, func(got []natstest.Message) bool {
		if len(got) == 3 {
			cancel()
		}
		return false
	}, "changes")
	if !errors.Is(err, context.Canceled) || len(got) != 3 {
		t.Errorf("got %d messages and %v, want 3 and the end of the context", len(got), err)
	}
}

func TestOptions(t *testing.T) {
	s := natstest.Start(t, func(o *server.Options) { o.Authorization = "let-me-in" })
	if _, err := nats.Connect(s.URL(), nats.Timeout(30*time.Second)); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("got %v without the token, want %v", err, nats.ErrAuthorization)
	}
	s.CreateStream(t.Context(), "changes", "k8s.>")
}

func publish(t *testing.T, s *natstest.Server, from, n int) {
	t.Helper()
	conn, err := nats.Connect(s.URL(), nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for i := from; i < from+n; i++ {
		msg := nats.NewMsg("k8s.core.pods")
		msg.Data = fmt.Append(nil, "data-", i)
		if _, err := js.PublishMsg(t.Context(), msg, jetstream.WithMsgID(fmt.Sprint("id-", i))); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClusterLosesItsLeader(t *testing.T) {
	c := natstest.StartCluster(t, 3)
	c.CreateStreamWith(t.Context(), jetstream.StreamConfig{Name: "changes", Subjects: []string{"k8s.>"}, Replicas: 3})
	leader := c.Leader(t.Context(), "changes")
	c.Kill(leader)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := nats.Connect(strings.Join(c.URLs(), ","), nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err = js.Publish(ctx, "k8s.core.pods", []byte("after"), jetstream.WithMsgID("1")); err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	c.Revive(leader)
	got, err := c.ReadAll(ctx, "changes")
	if err != nil || len(got) != 1 {
		t.Errorf("got %d messages and %v, want 1", len(got), err)
	}
}
