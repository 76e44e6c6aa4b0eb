package e2e_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestEtcdRestored puts an older state of the cluster back while the exporter runs. The exporter ends; its next start sends
// what exists in a new epoch. So whoever keeps the highest sequence per subject goes on with the restored cluster, although
// its resource versions are lower.
func TestEtcdRestored(t *testing.T) {
	beside(t)
	c := controlplane.ForTest(t, controlplane.Options{})
	config := c.Config()
	hook := webhooktest.Start(t)
	maps := objectsIn(t, config, load.ConfigMaps().GVR, metav1.NamespaceDefault)
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) + hookConfig("[v1/configmaps]", "{include: [default]}", hook.URL())
	maps.Create("web", data("1"))
	e := startExporter(t, c.KubeconfigFile(), text)
	records := hookReader(t, hook, cloudEvents)
	wait(t, records, "web", "ADDED")
	if err := c.BackUpEtcd(); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		maps.Patch("web", data(fmt.Sprint("lost ", n)))
	}
	eventually(t, wide, "the changes that will be lost", func() error {
		if n := len(of(records(), "web")); n < 21 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})

	e.leaves, e.ended = true, true
	if err := c.RestoreEtcd(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	eventually(t, wide, "the exporter ends", func() error {
		select {
		case <-e.process.Done():
			return nil
		default:
			return errors.New("it runs")
		}
	})
	if text := e.LogText(); !strings.Contains(text, "its history has gone back") {
		t.Errorf("the log does not name the restore:\n%s", tail(e.log, 20))
	}

	before := len(records())
	again := startExporter(t, c.KubeconfigFile(), text)
	again.WaitReady()
	maps.Patch("web", data("after the restore"))
	eventually(t, wide, "the change after the restore", func() error {
		if n := len(records()) - before; n < 2 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	expectState(t, config, records(), []schema.GroupVersionResource{load.ConfigMaps().GVR}, metav1.NamespaceDefault)
}
