package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestEtcdRestored puts an older state of the cluster back while kubeferry runs, behind a server that is slow to answer the
// request that compares positions. Until it answers no watch goes on: the API server would accept the position, which is from its
// future, and omit what is before it. Then kubeferry sends a gap record and what exists, under other ids and higher sequences. So whoever keeps
// the highest sequence per subject goes on with the restored cluster, although its resource versions are lower.
func TestEtcdRestored(t *testing.T) {
	beside(t)
	c := controlplane.ForTest(t, controlplane.Options{})
	gateway, kubeconfig := gatewayOf(t, c.Config())
	keeper := startTableKeeper(t) // expects that no sequence goes back
	maps := objectsIn(t, c.Config(), configMaps, metav1.NamespaceDefault)
	taken := func(n int, what string) {
		t.Helper()
		eventually(t, wide, what, func() error {
			if got := len(keeper.Objects()); got < n {
				return fmt.Errorf("%d records, want %d", got, n)
			}
			return nil
		})
	}
	all := func(string) bool { return true }
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) + hookConfig("[v1/configmaps]", "{include: [default]}", keeper.url)
	maps.Create("web", data("1"))
	maps.Create("gone", data("1"))
	e := startExporter(t, kubeconfig, text)
	taken(2, "what exists")
	if err := c.BackUpEtcd(); err != nil {
		t.Fatal(err)
	}
	const lost = 300 // more than what happens until the comparison is answered
	for n := range lost {
		maps.Patch("web", data(fmt.Sprint("lost ", n)))
	}
	before := 2 + lost
	taken(before, "the changes that will be lost")

	answer := make(chan struct{})
	release := sync.OnceFunc(func() { close(answer) })
	t.Cleanup(release)
	gateway.Use(func(r *http.Request) *proxy.Fault {
		if strings.HasSuffix(r.URL.Path, "/configmaps") && r.URL.Query().Get("limit") == "1" {
			return &proxy.Fault{Hold: answer}
		}
		return nil
	})
	asked := len(gateway.Requests())
	if err := c.RestoreEtcd(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	var compared time.Time
	eventually(t, wide, "the comparison", func() error {
		for _, r := range gateway.Requests()[asked:] {
			if r.Query.Get("limit") == "1" {
				compared = r.Time
				return nil
			}
		}
		return errors.New("no request")
	})
	maps.Patch("web", data("while it waits"))
	maps.Create("new", data("1"))
	maps.Delete("gone")
	lasting(t, time.Until(compared.Add(8*time.Second))) // the server took most of it to start
	for _, r := range gateway.Requests()[asked:] {
		if isWatch(r.Path, r.Query, "configmaps") {
			t.Errorf("a watch goes on from a position that was not compared: %+v", r)
		}
	}
	if got := keeper.Objects()[before:]; len(got) > 0 {
		t.Errorf("before the comparison was answered: %q", got)
	}
	release()
	e.WaitLogged(wide, "the history of the resource has gone back, as after a restore of etcd: a gap; what exists now follows", "level:ERROR")
	keeper.Equals(maps, all)
	maps.Patch("web", data("after the restore"))
	keeper.Equals(maps, all)
	if gaps := keeper.Gaps(); len(gaps) != 1 || gaps[0].From == "" { // what was made and deleted before the comparison is missed
		t.Errorf("got gaps %+v", gaps)
	}
	keeper.mu.Lock()
	defer keeper.mu.Unlock()
	for _, r := range keeper.table.All() {
		if !strings.HasPrefix(r.ID, clusterName+"+1/") {
			t.Errorf("%s is of before the restore", r.ID)
		}
	}
}

// TestExtendedEtcdRestoredAndRaised restores etcd as the documentation recommends: all positions are refused, and objects have the resource versions
// that they had in the backup. What was sent since must not pass for newer.
func TestExtendedEtcdRestoredAndRaised(t *testing.T) {
	beside(t)
	c := controlplane.ForTest(t, controlplane.Options{})
	keeper := startTableKeeper(t)
	maps := objectsIn(t, c.Config(), configMaps, metav1.NamespaceDefault)
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) + hookConfig("[v1/configmaps]", "{include: [default]}", keeper.url)
	for _, name := range []string{"changed", "deleted", "kept"} {
		maps.Create(name, data("1"))
	}
	e := startExporter(t, c.KubeconfigFile(), text)
	all := func(string) bool { return true }
	keeper.Equals(maps, all)
	if err := c.BackUpEtcd(); err != nil {
		t.Fatal(err)
	}
	maps.Patch("changed", data("2"))
	maps.Delete("deleted")
	maps.Create("lost", data("1"))
	keeper.Equals(maps, all)
	e.WaitSettled(wide)
	position, err := c.EtcdRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.Atoi(position)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.RestoreEtcd(t.Context(), revision+100); err != nil {
		t.Fatal(err)
	}
	e.WaitLogged(wide, "the history of the resource has gone back, as after a restore of etcd: a gap; what exists now follows", "level:ERROR")
	keeper.Equals(maps, all)
	maps.Patch("kept", data("after the restore"))
	keeper.Equals(maps, all)
}

// TestEventsEtcdEmptied empties the etcd that Events alone have. Only Events are read anew, behind a gap record and under other ids: the history of
// ConfigMaps goes on as it happened.
func TestEventsEtcdEmptied(t *testing.T) {
	beside(t)
	c := controlplane.ForTest(t, controlplane.Options{EventsEtcd: true})
	hook := webhooktest.Start(t)
	read := hookReader(t, hook, cloudEvents)
	maps := objectsIn(t, c.Config(), configMaps, metav1.NamespaceDefault)
	events := objectsIn(t, c.Config(), schema.GroupVersionResource{Version: "v1", Resource: "events"}, metav1.NamespaceDefault)
	event := map[string]any{"reason": "Test", "type": "Normal", "involvedObject": map[string]any{"kind": "Pod", "namespace": metav1.NamespaceDefault, "name": "none"}}
	maps.Create("web", data("1"))
	for n := range 50 {
		events.Create(fmt.Sprint("before-", n), event)
	}
	e := startExporter(t, c.KubeconfigFile(), fmt.Sprintf("stateDir: %q\n", t.TempDir())+hookConfig("[v1/configmaps, v1/events]", "{include: [default]}", hook.URL()))
	e.WaitReady()
	e.WaitSettled(wide)
	before := len(read())
	if err := c.EmptyEventsEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.WaitLogged(wide, "the history of the resource has gone back, as after a restore of etcd: a gap; what exists now follows", "level:ERROR")
	events.Create("after", event)
	maps.Patch("web", data("2"))
	wait(t, read, "after", oracle.Added)
	wait(t, read, "web", oracle.Modified)
	eventually(t, wide, "the deletions", func() error {
		deleted := 0
		for _, r := range read()[before:] {
			if r.Type == oracle.Deleted && strings.HasPrefix(r.Name, "before-") {
				deleted++
			}
		}
		if deleted != 50 {
			return fmt.Errorf("%d of 50", deleted)
		}
		return nil
	})
	for _, r := range read()[before:] {
		ofEvents := r.Resource.Resource == "events"
		if r.Type == oracle.Gap && !ofEvents || r.Type != oracle.Gap && r.Type != oracle.Mark && ofEvents != strings.HasPrefix(r.ID, clusterName+"+1/") {
			t.Errorf("got %s of %s", r.ID, r.Resource)
		}
	}
}
