package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestEditedConfiguration stops kubeferry, deletes objects, edits what its file selects, and starts it again. Behind a gap record comes what
// exists and is selected now, as a snapshot, with sequences beyond those of before. What the watch had and does not select any more leaves a
// pipeline with `onLeave: deleted`.
func TestEditedConfiguration(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	accounts := schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"} // there are few in the whole cluster
	shop, team := newNamespace(t, "shop"), newNamespace(t, "team")
	both := fmt.Sprintf("{include: [%s, %s]}", shop, team)
	globs := fmt.Sprintf("include: [%q, %q]", shop+"*", team+"*")
	tests := []struct {
		name, before, after string
		same                bool // watch
		ends                bool // that of the namespace team, which is a watch of its own
	}{
		{"a narrower selector", "name: s, labelSelector: app, namespaces: " + both, "name: s, labelSelector: 'app=web', namespaces: " + both, true, false},
		{"an exclusion", "name: s, namespaces: {" + globs + "}", fmt.Sprintf("name: s, namespaces: {%s, exclude: [%s]}", globs, team), true, false},
		{"one namespace less", "name: s, namespaces: {" + globs + "}", fmt.Sprintf("name: s, namespaces: {include: [%q]}", shop+"*"), true, false},
		{"another name", "name: s, namespaces: " + both, fmt.Sprintf("name: renamed, namespaces: {include: [%s]}", shop), false, false},
		{"one name less", "name: s, namespaces: " + both, fmt.Sprintf("name: s, namespaces: {include: [%s]}", shop), false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			app := func(value string) map[string]any {
				return map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": value}}}
			}
			inShop, inTeam := objectsIn(t, config, accounts, shop), objectsIn(t, config, accounts, team)
			prefix := strings.ReplaceAll(tt.name, " ", "-") + "-"
			inShop.Create(prefix+"stays", app("web"))
			inShop.Create(prefix+"deleted", app("web"))
			inTeam.Create(prefix+"left", app("db"))
			hook, leaving, dir := webhooktest.Start(t), webhooktest.Start(t), t.TempDir()
			text := func(source string) string {
				return fmt.Sprintf(`
stateDir: %q
sources: [{%s, resources: [v1/serviceaccounts]}]
pipelines:
- {name: p, sink: hook, filters: [{expr: 'object.metadata.name.startsWith("%s")'}]}
- {name: leaving, sink: leaving, onLeave: deleted, filters: [{expr: 'object.metadata.name.startsWith("%[3]s")'}]}
sinks: [{name: hook, webhook: {url: %[4]q}}, {name: leaving, webhook: {url: %[5]q}}]
`, dir, source, prefix, hook.URL(), leaving.URL())
			}
			e := startExporter(t, plane(t).KubeconfigFile(), text(tt.before))
			e.WaitReady()
			e.WaitSettled(wide)
			e.Stop()
			highest, before := uint64(0), hookReader(t, leaving, cloudEvents)()
			for _, r := range before {
				highest = max(highest, r.Sequence)
			}
			inShop.Delete(prefix + "deleted")
			e = startExporter(t, plane(t).KubeconfigFile(), text(tt.after))
			e.WaitReady()
			read := hookReader(t, leaving, cloudEvents)
			wanted := map[string][]string{"stays": {"ADDED snapshot"}, "deleted": nil, "left": nil}
			if tt.same {
				wanted["deleted"], wanted["left"] = []string{"DELETED inferred"}, []string{"DELETED inferred"}
			}
			if tt.ends {
				wanted = map[string][]string{"stays": nil, "deleted": {"DELETED"}, "left": {"DELETED inferred"}}
			}
			eventually(t, wide, "what the edit leads to", func() error {
				after := read()[len(before):]
				for name, want := range wanted {
					if got := of(after, prefix+name); !slices.Equal(got, want) {
						return fmt.Errorf("%s: got %q, want %q", name, got, want)
					}
				}
				if gaps := len(gapsOf(after)); (gaps == 0) != tt.ends {
					return fmt.Errorf("%d gap records", gaps)
				}
				return nil
			})
			for _, r := range read()[len(before):] {
				if r.Type != oracle.Gap && r.Type != oracle.Mark && r.Sequence <= highest {
					t.Errorf("%s has the sequence %d, and %d was sent before the edit", r.ID, r.Sequence, highest)
				}
			}
			e.Stop()
		})
	}
}

// TestExtendedKilledAndEdited has a run send an object that no commit names, and be killed; the file is edited, and does not select the object
// any more. A gap record says that something may be missing, and what exists follows.
func TestExtendedKilledAndEdited(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "killed-edited")
	accounts := objectsIn(t, config, schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, namespace)
	app := func(value string) map[string]any {
		return map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": value}}}
	}
	accounts.Create("stays", app("web"))
	hook, dir := webhooktest.Start(t), t.TempDir()
	text := func(selector string) string {
		return fmt.Sprintf("stateDir: %q\nsources: [{name: s, resources: [v1/serviceaccounts], labelSelector: %q, namespaces: {include: [%s]}}]\n"+
			"pipelines: [{name: p, sink: hook}]\nsinks: [{name: hook, webhook: {url: %q}}]\n", dir, selector, namespace, hook.URL())
	}
	read := hookReader(t, hook, cloudEvents)
	e := startExporter(t, plane(t).KubeconfigFile(), text("app"))
	e.WaitReady()
	e.WaitSettled(wide)
	first := accounts.Patch("stays", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"note": "0"}}})
	committed := stateAt(t, dir, first.GetResourceVersion()) // behind it, all is settled
	accounts.Create("unknown", app("db"))
	accounts.Patch("stays", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"note": "1"}}})
	accounts.Patch("stays", map[string]any{"metadata": map[string]any{"annotations": map[string]any{"note": "2"}}})
	eventually(t, wide, "what no commit names", func() error {
		if got := of(read(), "stays"); len(got) != 4 || len(of(read(), "unknown")) != 1 {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	e.Kill()
	if err := os.WriteFile(filepath.Join(dir, "kubeferry.db"), committed, 0o600); err != nil { // as if it had been killed sooner
		t.Fatal(err)
	}
	before := len(read())

	e = startExporter(t, plane(t).KubeconfigFile(), text("app=web"))
	e.WaitReady()
	eventually(t, wide, "a gap, and what happened", func() error {
		records := read()[before:]
		if got := of(records, "stays"); !slices.Equal(got, []string{"MODIFIED inferred", "ADDED snapshot"}) {
			return fmt.Errorf("got %q", got)
		}
		gaps := gapsOf(records)
		if len(gaps) != 1 || gaps[0].From == "" {
			return fmt.Errorf("got %+v", gaps)
		}
		return nil
	})
	e.Stop()
}

// stateAt returns the state file once its last commit has a position or one behind it, and nothing waits there.
func stateAt(t *testing.T, dir, position string) (content []byte) {
	t.Helper()
	path := filepath.Join(dir, "kubeferry.db")
	eventually(t, wide, "a commit at "+position, func() error {
		before, err := transaction(path)
		if err != nil {
			return err
		}
		if content, err = os.ReadFile(path); err != nil {
			return err
		}
		after, err := transaction(path)
		if err != nil || after != before {
			return fmt.Errorf("transactions %d and %d: %w", before, after, err)
		}
		return settledAt(t, content, position)
	})
	return content
}

var positions = regexp.MustCompile(`"position":"(\d+)"`)

// settledAt reports whether the last commit of a state file has a position or one behind it, which a bookmark may have brought, and
// nothing in the logs of pipelines. Other pages may hold what a commit is about to write.
func settledAt(t *testing.T, content []byte, position string) error {
	path := filepath.Join(t.TempDir(), "copy.db")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return err
	}
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	want, err := strconv.ParseUint(position, 10, 64)
	if err != nil {
		return err
	}
	found := false
	look := func(b *bolt.Bucket) error {
		return b.ForEach(func(_, value []byte) error {
			for _, match := range positions.FindAllSubmatch(value, -1) {
				at, err := strconv.ParseUint(string(match[1]), 10, 64)
				found = found || err == nil && at >= want
			}
			return nil
		})
	}
	return db.View(func(tx *bolt.Tx) error {
		err := tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			if first, _ := b.Cursor().First(); first != nil && bytes.HasPrefix(name, []byte("log/")) {
				return fmt.Errorf("something waits in %s", name)
			}
			return look(b)
		})
		if err == nil && !found {
			err = errors.New("it is not there yet")
		}
		return err
	})
}

// TestExtendedMadeAnewInAGapBehindAnEdit has a run killed, an object deleted and made anew, the history compacted and a filter edited. The
// ADDED has a higher sequence than the DELETED before it: of two with the same one a consumer takes the DELETED.
func TestExtendedMadeAnewInAGapBehindAnEdit(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "anew")
	events := objectsIn(t, config, schema.GroupVersionResource{Version: "v1", Resource: "events"}, namespace)
	body := map[string]any{"reason": "Test", "type": "Normal", "involvedObject": map[string]any{"kind": "Pod", "namespace": namespace, "name": "none"}}
	hook, dir := webhooktest.Start(t), t.TempDir()
	text := func(other string) string {
		return fmt.Sprintf("stateDir: %q\nsources: [{name: s, resources: [v1/events], namespaces: {include: [%s]}}]\n"+
			"pipelines: [{name: p, sink: hook, filters: [{expr: 'object.metadata.name != %q'}]}]\nsinks: [{name: hook, webhook: {url: %q}}]\n",
			dir, namespace, other, hook.URL())
	}
	read := hookReader(t, hook, cloudEvents)
	events.Create("a", body)
	e := startExporter(t, plane(t).KubeconfigFile(), text("x"))
	e.WaitReady()
	wait(t, read, "a", oracle.Added)
	stateAt(t, dir, events.Create("b", body).GetResourceVersion())
	e.Kill()
	events.Delete("a")
	events.Create("a", body)
	if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
		t.Fatal(err)
	}
	before := len(read())
	e = startExporter(t, plane(t).KubeconfigFile(), text("y"))
	e.WaitReady()
	eventually(t, wide, "a once more", func() error {
		if got := of(read()[before:], "a"); len(got) != 2 {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	sequences := map[string]uint64{}
	for _, record := range read()[before:] {
		if record.Name == "a" {
			sequences[record.Type] = record.Sequence
		}
	}
	if sequences[oracle.Added] <= sequences[oracle.Deleted] {
		t.Errorf("got %v", sequences)
	}
	e.Stop()
}
