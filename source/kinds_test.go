package source

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

func TestResourceOf(t *testing.T) {
	server := sourcetest.New(t)
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	kinds := NewKinds(client)
	for _, c := range []struct {
		kind    schema.GroupKind
		missing bool
	}{
		{schema.GroupKind{Kind: "Gadget"}, false},
		{schema.GroupKind{Kind: "gadget"}, true},
		{schema.GroupKind{Group: "example.com", Kind: "Gadget"}, true},
	} {
		gvr, namespaced, err := kinds.ResourceOf(t.Context(), c.kind)
		if c.missing {
			if !errors.Is(err, ErrMissing) {
				t.Errorf("%v: got %v, %v, want ErrMissing", c.kind, gvr, err)
			}
			continue
		}
		if gvr != sourcetest.Gadgets || !namespaced || err != nil {
			t.Errorf("%v: got %v, %v, %v", c.kind, gvr, namespaced, err)
		}
	}
}

// Events of a hundred kinds that do not exist take no requests from others, and those of one kind take few.
func TestForgedKinds(t *testing.T) {
	server := sourcetest.New(t)
	var requests atomic.Int32
	client, err := NewClient(&rest.Config{Host: server.URL, WrapTransport: func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			requests.Add(1)
			return next.RoundTrip(r)
		})
	}}, false)
	if err != nil {
		t.Fatal(err)
	}
	kinds := NewKinds(client)
	for range 5 {
		if _, _, err := kinds.ResourceOf(t.Context(), schema.GroupKind{Kind: "Forged"}); !errors.Is(err, ErrMissing) {
			t.Fatalf("got %v, want ErrMissing", err)
		}
	}
	once := requests.Load()
	if _, _, err := NewKinds(client).ResourceOf(t.Context(), schema.GroupKind{Kind: "Forged"}); !errors.Is(err, ErrMissing) {
		t.Fatalf("got %v, want ErrMissing", err)
	}
	if twice := requests.Load(); twice != 2*once {
		t.Errorf("%d requests for five lookups of a kind, %d for one", once, twice-once)
	}

	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	var answered atomic.Int32
	for n := range 100 {
		looking.Go(func() {
			if _, _, err := kinds.ResourceOf(ctx, schema.GroupKind{Kind: fmt.Sprint("Forged", n)}); errors.Is(err, ErrMissing) {
				answered.Add(1)
			}
		})
	}
	for answered.Load() < kindsAtOnce-5 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	c := collection{client: client, resource: sourcetest.Things}
	for range 100 {
		if _, err := c.list(ctx, metav1.ListOptions{Limit: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.resolve(ctx, sourcetest.Things); err != nil {
			t.Fatal(err)
		}
	}
	if n := answered.Load(); n > 90 {
		t.Errorf("%d kinds were looked for meanwhile", n)
	}
	if limiter := client.rest.GetRateLimiter(); limiter != nil {
		t.Errorf("the requests of all watches share a limit of %v a second", limiter.QPS())
	}
	cancel()
	looking.Wait()
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
