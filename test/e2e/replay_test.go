package e2e_test

import (
	"fmt"
	"net/http"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestReplay has a receiver refuse records, and replays them from the state directory: while kubeferry runs, and after it
// has stopped. Meanwhile one of their objects was changed, and one deleted: a log takes what comes late, a table keeps what it has.
func TestReplay(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "replay")
	objects := objectsIn(t, config, configMaps, namespace)
	hook := webhooktest.Start(t)
	refuse := func() { hook.Use(webhooktest.Status(http.StatusRequestEntityTooLarge)) }
	refuse()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, snapshot: never}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, filepath.Join(t.TempDir(), "state"), namespace, hook.URL())
	file := writeConfig(t, t.TempDir(), text)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()

	bringDeadLetter := func(name string) {
		t.Helper()
		refuse()
		objects.Create(name, data("1"))
		e.WaitLogged(wide, "a record becomes a dead letter", name)
		e.WaitSettled(wide)
	}
	replay := func(name string) {
		t.Helper()
		refuse()
		output, code := runToEnd(t, "replay", "--config", file)
		if code != 1 || !strings.Contains(output, "delivered 0 dead letters, 1 are left") {
			t.Errorf("while the receiver refuses: exit code %d and\n%s", code, output)
		}
		hook.Use(webhooktest.Accept())
		before := len(hook.Accepted())
		output, code = runToEnd(t, "replay", "--config", file)
		if code != 0 || !strings.Contains(output, "delivered 1 dead letters, 0 are left") {
			t.Errorf("exit code %d and\n%s", code, output)
		}
		accepted := hook.Accepted()[before:]
		if len(accepted) != 1 || !strings.Contains(string(accepted[0].Body), `"replayed":true`) || !strings.Contains(string(accepted[0].Body), name) {
			t.Errorf("the receiver got %+v", accepted)
		}
		if output, code = runToEnd(t, "replay", "--config", file); code != 0 || !strings.Contains(output, "no dead letters") {
			t.Errorf("again: exit code %d and\n%s", code, output)
		}
	}
	bringDeadLetter("first")
	if m := e.Metrics(); m.sum("kubeferry_dead_letters") != 1 || m.sum("kubeferry_dead_letters_full") != 0 {
		t.Errorf("%v dead letters, full: %v", m.sum("kubeferry_dead_letters"), m.sum("kubeferry_dead_letters_full"))
	}
	read := hookReader(t, hook, cloudEvents)
	hook.Use(webhooktest.Accept())
	objects.Patch("first", data("2"))
	wait(t, read, "first", oracle.Modified)
	e.WaitSettled(wide)
	replay("first")
	bringDeadLetter("second")
	hook.Use(webhooktest.Accept())
	objects.Delete("second")
	wait(t, read, "second", oracle.Deleted)
	e.WaitSettled(wide)
	e.Stop()
	replay("second")

	table, got := consume.NewTable(), []string{}
	for _, record := range hook.Accepted() {
		decoded, err := consume.Decode(nil, record.Body)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range decoded {
			kept := table.Apply(&r)
			line := fmt.Sprint(path.Base(r.Subject), " ", r.Type)
			if r.Replayed {
				line += " replayed"
			}
			if !kept {
				line += " late"
			}
			got = append(got, line)
		}
	}
	want := []string{"first MODIFIED", "first ADDED replayed late", "second DELETED", "second ADDED replayed late"}
	exist := 0
	for range table.All() {
		exist++
	}
	if !slices.Equal(got, want) || exist != 1 {
		t.Errorf("got %q and %d objects, want %q and one object", got, exist, want)
	}
}
