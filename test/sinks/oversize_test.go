package sinks_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nats-io/nats.go"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/test/natstest"
)

func testKafkaOversize(t *testing.T, broker *kafkaServer) {
	t.Helper()
	broker.CreateTopic("pipeline", 2)
	testOversize(t, kafkaConfig("pipeline", broker.Addr()), func() (ids []string) {
		for _, r := range readAll(t, broker, "pipeline") {
			ids = append(ids, r.Headers["kubeferry-dedup-id"])
		}
		return ids
	})
}

func TestJetStreamOversize(t *testing.T) {
	srv := natstest.Start(t, nil)
	srv.CreateStream(t.Context(), "OVERSIZE", "k8s.>")
	testOversize(t, natsConfig(hostOf(t, srv.URL())), func() (ids []string) {
		for _, m := range readStream(t, srv, "OVERSIZE") {
			ids = append(ids, m.Header.Get(nats.MsgIdHdr))
		}
		return ids
	})
}

// testOversize sends objects of which two are larger than the peer takes, in batches with others. These two go to the
// dead letter, which names the object; the others arrive once, in order, as if the two had not been there. stored are
// the ids that the peer has, in order per object.
func testOversize(t *testing.T, config sinks.Config, stored func() []string) {
	t.Helper()
	const objects, versions = 30, 3
	large := map[[2]int]bool{{7, 2}: true, {19, 1}: true}
	dead := &lettersByKey{got: map[string]pipeline.Letter{}}
	p := runPipeline(t, config, pipeline.Options{Options: shape.Options{Format: shape.FormatRaw}, DeadLetter: dead})
	want := map[string][]string{} // by uid
	for version := 1; version <= versions; version++ {
		for n := range objects {
			text := []byte(`""`)
			if large[[2]int{n, version}] {
				text = noise(1_500_000)
			} else {
				uid := fmt.Sprintf("u-%d", n)
				want[uid] = append(want[uid], fmt.Sprintf("events/test/%s/%d/MODIFIED", uid, version))
			}
			object, err := delta.NewObject(fmt.Appendf(nil,
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%d","namespace":"shop","uid":"u-%d","resourceVersion":"%d"},"data":{"text":%s}}`,
				n, n, version, text))
			if err != nil {
				t.Fatal(err)
			}
			if err := handOver(t.Context(), p, &delta.Delta{
				Type: delta.Modified, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Object: object, Observed: time.Now(),
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if left := p.Drain(within(t, time.Minute)); left > 0 {
		t.Fatalf("%d records are left", left)
	}
	for _, n := range []int{7, 19} {
		letter, ok := dead.got[fmt.Sprintf("/api/v1/namespaces/shop/configmaps/c-%d", n)]
		if !ok || letter.Reason != string(sinks.ReasonTooLarge) {
			t.Errorf("c-%d: got letter %t, reason %q", n, ok, letter.Reason)
		}
		t.Log(letter.Error)
	}
	if len(dead.got) != len(large) {
		t.Errorf("got %d dead letters, want %d", len(dead.got), len(large))
	}
	ids := stored()
	for uid, want := range want {
		var got []string
		for _, id := range ids {
			if slices.Contains(want, id) {
				got = append(got, id)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", uid, got, want)
		}
	}
	if want := objects*versions - len(large); len(ids) != want {
		t.Errorf("got %d records, want %d", len(ids), want)
	}
}

// lettersByKey keeps dead letters by the path of their object.
type lettersByKey struct {
	mu  sync.Mutex // guards got
	got map[string]pipeline.Letter
}

func (l *lettersByKey) Write(_ context.Context, letters []pipeline.Letter) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, letter := range letters {
		l.got[letter.Record.Key] = letter
	}
	return len(letters), nil
}
