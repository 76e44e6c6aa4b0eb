package oracle

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/load"
)

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare)
	os.Exit(m.Run())
}

// TestAgainstARealControlPlane lets one oracle judge what another one has seen, so that two independent streams are
// compared as they come.
func TestAgainstARealControlPlane(t *testing.T) {
	c := controlplane.ForTest(t, controlplane.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := load.InstallWidgets(ctx, c.Config()); err != nil {
		t.Fatal(err)
	}
	if err := load.CreateNamespaces(ctx, c.Config(), "team-a", "team-b"); err != nil {
		t.Fatal(err)
	}
	run := func(prefix string) []string {
		t.Helper()
		result, err := load.Run(ctx, c.Config(), load.Options{
			Resources: load.All(), Namespaces: []string{"team-a", "team-b"}, Operations: 300, Prefix: prefix,
		})
		if err != nil {
			t.Fatal(err)
		}
		return result.UIDs
	}
	run("before") // becomes the snapshot

	begin := func() *Oracle {
		o, err := Start(ctx, c.Config(), Options{Cluster: "c", Resources: load.GVRs(load.All())})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(o.Stop)
		return o
	}
	judge, witness := begin(), begin()
	delivered := func() []Record { return witness.testimony() }

	uids := run("after")
	for _, o := range []*Oracle{judge, witness} {
		if err := o.WaitCaughtUp(ctx, uids...); err != nil {
			t.Fatal(err)
		}
	}
	report, err := judge.WaitDelivered(ctx, delivered, CompareOptions{})
	if err != nil || !report.OK() || report.Expected != report.Distinct || report.Snapshots == 0 {
		t.Fatalf("got %v\n%s", err, report)
	}
	if judge.Changes() <= 300 {
		t.Errorf("got %d changes of 300 operations, want more", judge.Changes())
	}

	t.Run("planted faults are found", func(t *testing.T) {
		good := delivered()
		i := slices.IndexFunc(good, func(r Record) bool { return r.Type == Deleted })
		if r := judge.Compare(slices.Delete(slices.Clone(good), i, i+1), CompareOptions{}); len(r.Missing) != 1 || r.OK() {
			t.Errorf("a deletion was taken away: %s", r)
		}
		if r := judge.Compare(append(slices.Clone(good), good[i]), CompareOptions{}); len(r.Duplicates) != 1 || !r.OK() {
			t.Errorf("a record was repeated: %s", r)
		}
		moved := append(slices.Delete(slices.Clone(good), i, i+1), good[i])
		slices.Reverse(moved)
		if r := judge.Compare(moved, CompareOptions{}); len(r.OutOfOrder) == 0 || len(r.Missing) != 0 {
			t.Errorf("the order was reversed: %s", r)
		}
	})

	t.Run("a restart of the API server is survived", func(t *testing.T) {
		if err := c.RestartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
		uids := run("later")
		for _, o := range []*Oracle{judge, witness} {
			if err := o.WaitCaughtUp(ctx, uids...); err != nil {
				t.Fatal(err)
			}
		}
		report, err := judge.WaitDelivered(ctx, delivered, CompareOptions{AllowGaps: true, AllowHoles: true})
		if err != nil || !report.OK() {
			t.Fatalf("got %v\n%s", err, report)
		}
		t.Logf("holes: judge %d, witness %d; %s", judge.Holes(), witness.Holes(), report)
	})
}

// testimony is what the oracle saw, as records.
func (o *Oracle) testimony() []Record {
	o.mu.Lock()
	defer o.mu.Unlock()
	var records []Record
	add := func(w *watcher, s state, typ string, snapshot, inferred bool) {
		records = append(records, Record{
			ID: id(o.cluster, s.uid, s.version, typ), Type: typ, Resource: w.resource,
			Namespace: s.namespace, Name: s.name, UID: s.uid, ResourceVersion: s.version,
			Snapshot: snapshot, Inferred: inferred,
		})
	}
	for _, w := range o.watches {
		for _, s := range w.history.snapshot {
			add(w, s, Added, true, false)
		}
		told := map[span]bool{} // holes
		for _, c := range w.history.changes {
			for _, hole := range w.history.holes {
				if !c.net || told[hole] || !hole.contains(c.rank) {
					continue
				}
				told[hole] = true
				from, to := fmt.Sprint(hole.from), fmt.Sprint(hole.to)
				records = append(records, Record{
					ID: id(o.cluster, w.resource.Resource, from+"-"+to, Gap), Type: Gap, Resource: w.resource, From: from, To: to,
				})
			}
			add(w, c.state, c.typ, false, c.net)
		}
	}
	return records
}
