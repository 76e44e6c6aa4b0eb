package app

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// TestEnricher: a watch fills the cache with what exists and what changes. An object that was deleted and made again while history was lost
// is not taken for the one before.
func TestEnricher(t *testing.T) {
	server := sourcetest.New(t)
	server.Write("shop/a", false)
	client, err := source.NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	e := newEnricher(&config.Config{
		Pipelines:  []config.Pipeline{{Enrich: config.EnrichInvolvedObject}},
		Enrichment: config.Enrichment{Resources: []schema.GroupVersionResource{sourcetest.Things}, MaxBytes: 1 << 20},
	}, client, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { e.watches.Run(ctx) })
	defer running.Wait()
	defer stop()
	knows := func(name string) func() bool {
		ref := delta.Reference{APIVersion: "v1", Kind: "Thing", Namespace: "shop", Name: name}
		return func() bool {
			ref.UID = "other"
			if o, exists := server.State(sourcetest.Things)["shop/"+name]; exists {
				ref.UID = types.UID(o.UID())
			}
			_, known := e.Lookup("shop", ref)
			return known
		}
	}
	eventually := func(what string, condition func() bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !condition(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("did not happen: %s", what)
			}
		}
	}
	eventually("what exists is known", knows("a"))
	server.Write("shop/b", false)
	eventually("a new object is known", knows("b"))
	server.Away(func() {
		server.Write("shop/b", true)
		server.Write("shop/b", false)
		server.Compact()
	})
	eventually("its successor is known", knows("b"))
	if len(e.watches.Status()) != 1 || !e.watches.Status()[0].Ready {
		t.Errorf("got %+v", e.watches.Status())
	}
}
