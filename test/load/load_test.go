package load_test

import (
	"os"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/load"
)

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare)
	os.Exit(m.Run())
}

func TestRun(t *testing.T) {
	c := controlplane.ForTest(t, controlplane.Options{})
	if err := load.InstallWidgets(t.Context(), c.Config()); err != nil {
		t.Fatal(err)
	}
	if err := load.CreateNamespaces(t.Context(), c.Config(), "team-a", "team-b"); err != nil {
		t.Fatal(err)
	}
	opts := load.Options{
		Resources: load.All(), Namespaces: []string{"team-a", "team-b"}, Objects: 32, Operations: 400, Seed: 7,
	}
	first, err := load.Run(t.Context(), c.Config(), opts)
	if err != nil {
		t.Fatal(err)
	}
	if first.Updated == 0 || first.Recreated == 0 || first.Deleted <= first.Recreated {
		t.Errorf("the mix is poor: %+v", first)
	}
	if got := first.Created + first.Updated + first.Deleted - first.Recreated; got != opts.Operations {
		t.Errorf("got %d operations, want %d", got, opts.Operations)
	}
	if len(first.UIDs) != first.Created || first.Created-first.Deleted != first.Live {
		t.Errorf("the counts disagree: %+v", first)
	}
	if got := count(t, c); got != first.Live {
		t.Errorf("%d objects exist, want %d", got, first.Live)
	}

	t.Run("the same seed does the same, through a restart of the API server", func(t *testing.T) {
		opts.Prefix = "again"
		var restart sync.Once
		var wg sync.WaitGroup
		defer wg.Wait()
		opts.OnWrite = func(done int64) {
			if done > 100 {
				restart.Do(func() {
					wg.Go(func() {
						if err := c.RestartAPIServer(t.Context()); err != nil {
							t.Error(err)
						}
					})
				})
			}
		}
		second, err := load.Run(t.Context(), c.Config(), opts)
		if err != nil {
			t.Fatal(err)
		}
		if second.Created != first.Created || second.Updated != first.Updated || second.Deleted != first.Deleted {
			t.Errorf("got %d/%d/%d created/updated/deleted, want %d/%d/%d", second.Created, second.Updated, second.Deleted,
				first.Created, first.Updated, first.Deleted)
		}
		if got, want := count(t, c), first.Live+second.Live; got != want {
			t.Errorf("%d objects exist, want %d", got, want)
		}
	})

	t.Run("until told to end, at a rate", func(t *testing.T) {
		until := make(chan struct{})
		var end sync.Once
		const rate, writes = 100, 50
		started := time.Now()
		result, err := load.Run(t.Context(), c.Config(), load.Options{
			Resources: opts.Resources, Namespaces: opts.Namespaces, Prefix: "until", Rate: rate, Until: until,
			OnWrite: func(done int64) {
				if done >= writes {
					end.Do(func() { close(until) })
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		// Each worker may be at a write when the load is to end.
		if n := result.Created + result.Updated + result.Deleted - result.Recreated; n < writes || n > writes+4 {
			t.Errorf("%d operations, want %d", n, writes)
		}
		if took := time.Since(started); took < (writes-1)*time.Second/rate {
			t.Errorf("%d writes in %v are more than %d per second", writes, took, rate)
		}
	})

	t.Run("remove a namespace", func(t *testing.T) {
		if err := load.RemoveNamespace(t.Context(), c.Config(), "team-b"); err != nil {
			t.Fatal(err)
		}
		client, err := dynamic.NewForConfig(c.Config())
		if err != nil {
			t.Fatal(err)
		}
		for _, gvr := range load.GVRs(load.All()) {
			for namespace, want := range map[string]bool{"team-a": true, "team-b": false} {
				list, err := client.Resource(gvr).Namespace(namespace).List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if got := len(list.Items) > 0; got != want {
					t.Errorf("%d %s in %s", len(list.Items), gvr.Resource, namespace)
				}
			}
		}
	})

	t.Run("remove the CRD", func(t *testing.T) {
		if err := load.RemoveWidgets(t.Context(), c.Config()); err != nil {
			t.Fatal(err)
		}
		if err := load.InstallWidgets(t.Context(), c.Config()); err != nil {
			t.Fatal(err)
		}
	})
}

// count is the number of objects of the load in the cluster.
func count(t *testing.T, c *controlplane.ControlPlane) int {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, gvr := range load.GVRs(load.All()) {
		list, err := client.Resource(gvr).List(t.Context(), metav1.ListOptions{LabelSelector: "load=kubeferry"})
		if err != nil {
			t.Fatal(err)
		}
		n += len(list.Items)
	}
	return n
}
