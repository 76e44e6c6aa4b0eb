package source

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// A review names what the API server authorizes the watch by: for a watch of one object its name, which a Role with
// resourceNames grants.
func TestReviews(t *testing.T) {
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	for name, test := range map[string]struct {
		c    collection
		want string
	}{
		"cluster":   {collection{resource: sourcetest.Things}, `{"namespace":"","group":"","version":"v1","resource":"things"}`},
		"namespace": {collection{resource: deployments, namespace: "ns"}, `{"namespace":"ns","group":"apps","version":"v1","resource":"deployments"}`},
		"one name": {
			collection{resource: sourcetest.Things, namespace: "ns", fieldSelector: "metadata.name=a"},
			`{"namespace":"ns","group":"","version":"v1","resource":"things","name":"a","fieldSelector":{"rawSelector":"metadata.name=a"}}`,
		},
		"one name and more": {
			collection{resource: sourcetest.Things, fieldSelector: "type=Warning,metadata.name==a,metadata.namespace!=b"},
			`{"namespace":"","group":"","version":"v1","resource":"things","name":"a",
				"fieldSelector":{"rawSelector":"type=Warning,metadata.name==a,metadata.namespace!=b"}}`,
		},
		"another name": {
			collection{resource: sourcetest.Things, fieldSelector: "metadata.name!=a"},
			`{"namespace":"","group":"","version":"v1","resource":"things","fieldSelector":{"rawSelector":"metadata.name!=a"}}`,
		},
		"labels": {
			collection{resource: sourcetest.Things, labelSelector: "app in (a, b)"},
			`{"namespace":"","group":"","version":"v1","resource":"things","labelSelector":{"rawSelector":"app in (a, b)"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var attributes map[string]any
			if err := json.Unmarshal([]byte(test.want), &attributes); err != nil {
				t.Fatal(err)
			}
			attributes["verb"] = "watch"
			text, err := json.Marshal(test.c.attributes("watch"))
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, attributes) {
				t.Errorf("got %s, want %v, %v", text, attributes, err)
			}
		})
	}
}

// reviewer answers SelfSubjectAccessReviews.
type reviewer struct {
	mu      sync.Mutex
	revoked map[string]bool
	reviews map[string]int
}

func (r *reviewer) RoundTrip(request *http.Request) (*http.Response, error) {
	var review struct {
		Spec struct{ ResourceAttributes struct{ Verb string } }
	}
	if err := json.NewDecoder(request.Body).Decode(&review); err != nil {
		return nil, err
	}
	verb := review.Spec.ResourceAttributes.Verb
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reviews[verb]++
	answer := fmt.Sprintf(`{"kind":"SelfSubjectAccessReview","status":{"allowed":%v}}`, !r.revoked[verb])
	return &http.Response{
		StatusCode: http.StatusCreated, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(answer)),
	}, nil
}

func (r *reviewer) revoke(verbs ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.revoked)
	for _, verb := range verbs {
		r.revoked[verb] = true
	}
}

// Each right is reviewed within a minute, with few requests. A revoked one takes the readiness, which comes back only with both.
func TestRightsAreReviewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &reviewer{revoked: map[string]bool{}, reviews: map[string]int{}}
		client, err := NewClient(&rest.Config{Host: "http://server", Transport: r}, false)
		if err != nil {
			t.Fatal(err)
		}
		logger := slog.New(slog.DiscardHandler)
		w := &watcher{
			collection: collection{client: client, resource: sourcetest.Things}, logger: logger, siblings: func() int { return 1 },
			health: &health{
				resource: sourcetest.Things, logger: logger, current: WatchStatus{State: StateStarting},
			},
		}
		w.health.opened(true)
		ctx, cancel := context.WithCancel(t.Context())
		var checks sync.WaitGroup
		checks.Go(func() { w.checkRights(ctx) })
		defer checks.Wait()
		defer cancel()
		expect := func(ready bool, within time.Duration) {
			t.Helper()
			time.Sleep(within)
			if s := w.health.status(); s.Ready != ready {
				t.Errorf("got %+v, want ready %v", s, ready)
			}
		}

		expect(true, time.Hour)
		r.mu.Lock()
		lists, watches, most := r.reviews["list"], r.reviews["watch"], 2*int(time.Hour/rightsInterval)
		r.mu.Unlock()
		if lists+watches > most || min(lists, watches) < most/4 {
			t.Errorf("in an hour %d reviews of list and %d of watch, want at most %d together", lists, watches, most)
		}
		for _, verb := range []string{"list", "watch"} {
			r.revoke(verb)
			expect(false, time.Minute)
			expect(false, time.Hour)
			r.revoke()
			expect(true, time.Minute)
			r.revoke("list", "watch")
			expect(false, time.Minute)
			r.revoke(verb)
			for range 60 {
				expect(false, time.Second)
			}
			r.revoke()
			expect(true, time.Minute)
		}
	})
}
