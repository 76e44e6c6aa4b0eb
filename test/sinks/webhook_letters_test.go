package sinks_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestWebhookOffenderAlone sends arrays of which some hold a record that the receiver can never take: that one
// becomes a dead letter, all others arrive, those of its own object after it too, in order.
func TestWebhookOffenderAlone(t *testing.T) {
	const objects, versions = 60, 4
	refused := map[string]int{"test/u-7/2/MODIFIED": http.StatusBadRequest, "test/u-41/1/MODIFIED": http.StatusRequestEntityTooLarge}
	receiver := webhooktest.Start(t)
	receiver.Use(func(r *webhooktest.Request) webhooktest.Answer {
		for _, record := range r.Records {
			if status := refused[record.ID]; status != 0 {
				return webhooktest.Answer{Status: status}
			}
		}
		return webhooktest.Answer{Status: http.StatusOK}
	})
	config := webhook.NewConfig()
	config.URL, config.Batch.MaxRecords, config.Batch.Linger = receiver.URL(), 50, 20*time.Millisecond
	dead := &collectLetters{}
	p := runPipeline(t, config, pipeline.Options{Options: shape.Options{Format: shape.FormatCloudEvents}, DeadLetter: dead})
	for version := 1; version <= versions; version++ {
		for n := range objects {
			object, err := delta.NewObject(fmt.Appendf(nil,
				`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c-%d","namespace":"shop","uid":"u-%d","resourceVersion":"%d"}}`, n, n, version))
			if err != nil {
				t.Fatal(err)
			}
			err = handOver(t.Context(), p, &delta.Delta{
				Type: delta.Modified, Resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, Object: object, Observed: time.Now(),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	if left := p.Drain(within(t, 60*time.Second)); left > 0 {
		t.Fatalf("%d records are left", left)
	}
	if got, want := dead.ids(), []string{"test/u-41/1/MODIFIED too_large", "test/u-7/2/MODIFIED rejected"}; !slices.Equal(got, want) {
		t.Errorf("got dead letters %q, want %q", got, want)
	}
	order := map[string][]string{}
	seen := map[string]bool{}
	for _, record := range receiver.Accepted() {
		if !seen[record.ID] {
			seen[record.ID] = true
			object := strings.Split(record.ID, "/")
			order[object[1]] = append(order[object[1]], object[2])
		}
	}
	for n := range objects {
		object := fmt.Sprintf("u-%d", n)
		var want []string
		for version := 1; version <= versions; version++ {
			if refused[fmt.Sprintf("test/%s/%d/MODIFIED", object, version)] == 0 {
				want = append(want, fmt.Sprint(version))
			}
		}
		if !slices.Equal(order[object], want) {
			t.Errorf("%s: got versions %q, want %q", object, order[object], want)
		}
	}
}

// collectLetters keeps dead letters.
type collectLetters struct {
	mu  sync.Mutex // guards got
	got []string
}

func (l *collectLetters) Write(_ context.Context, letters []pipeline.Letter) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, letter := range letters {
		l.got = append(l.got, letter.Record.ID+" "+letter.Reason)
	}
	return len(letters), nil
}

func (l *collectLetters) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Sorted(slices.Values(l.got))
}
