package load_test

import (
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/load"
)

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
