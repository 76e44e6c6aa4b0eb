package e2e_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// received is what a pipeline's receiver got of objects, as "TYPE name".
func received(hook *webhooktest.Receiver) []string {
	var found []string
	for _, event := range eventsOf(hook) {
		text := event.Data.Type
		if event.Data.Inferred {
			text += " inferred"
		}
		found = append(found, text+" "+event.Data.Object.Metadata.Name)
	}
	return found
}

// event is what these tests read of a CloudEvent.
type event struct {
	Data struct {
		Type               string          `json:"type"`
		Inferred           bool            `json:"inferred"`
		FinalStateUnknown  bool            `json:"finalStateUnknown"`
		Patch              json.RawMessage `json:"patch"`
		OldObject          json.RawMessage `json:"oldObject"`
		OldResourceVersion string          `json:"oldResourceVersion"`
		OldObjectKnown     *bool           `json:"oldObjectKnown"`
		Raw                json.RawMessage `json:"-"`
		Object             struct {
			Metadata struct {
				Name            string            `json:"name"`
				ResourceVersion string            `json:"resourceVersion"`
				Labels          map[string]string `json:"labels"`
			} `json:"metadata"`
			Data map[string]string `json:"data"`
		} `json:"object"`
	} `json:"data"`
}

func eventsOf(hook *webhooktest.Receiver) []event {
	var events []event
	for _, record := range hook.Accepted() {
		var e event
		var whole struct {
			Data struct {
				Object json.RawMessage `json:"object"`
			} `json:"data"`
		}
		if json.Unmarshal(record.Body, &e) == nil && json.Unmarshal(record.Body, &whole) == nil {
			e.Data.Raw = whole.Data.Object
			events = append(events, e)
		}
	}
	return events
}

// expectReceived waits for what a receiver got, but for what was sent again.
func expectReceived(tb testing.TB, hook *webhooktest.Receiver, want ...string) {
	tb.Helper()
	eventually(tb, wide, fmt.Sprintf("the records %q", want), func() error {
		if got := slices.Compact(received(hook)); !slices.Equal(got, want) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
}

// Filters, transforms and differences on a real API server, through a crash and through a gap: which pipeline
// received which object outlives the process, and so does the previous version. A pipeline that was sent an object gets its DELETED, also if the
// object has ceased to pass its filters, and then nothing else of the object.
func TestFiltersAndDifferencesOutliveTheProcess(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "language")
	maps := objectsIn(t, config, configMaps, namespace)
	labelled := func(app, value string) map[string]any {
		return map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": app}}, "data": map[string]any{"value": value, "secret": "planted-" + value}}
	}
	web, silent, quiet, old := webhooktest.Start(t), webhooktest.Start(t), webhooktest.Start(t), webhooktest.Start(t)
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines:
  - name: web
    filters: [{expr: 'object.metadata.labels.app == "web"', onError: drop}]
    onLeave: deleted
    transforms: [{remove: [data.secret]}, {set: {metadata.labels.region: '"eu"'}}]
    diff: jsonPatch
    sink: web
  - name: silent
    filters: [{expr: 'object.metadata.labels.app == "web"', onError: drop}]
    transforms: [{set: {metadata.labels.region: '"eu"'}}]
    sink: silent
  - name: quiet
    filters: [{changed: [data]}, {types: [MODIFIED, DELETED]}]
    transforms: [{redact: [data.secret]}]
    sink: quiet
  - {name: old, diff: oldObject, keepManagedFields: true, sink: old}
sinks:
  - {name: web, webhook: {url: %q}}
  - {name: silent, webhook: {url: %q}}
  - {name: quiet, webhook: {url: %q}}
  - {name: old, webhook: {url: %q}}
redaction: {key: "0123456789abcdef0123456789abcdef"}
`, t.TempDir(), namespace, web.URL(), silent.URL(), quiet.URL(), old.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	maps.Create("a", labelled("web", "1"))
	maps.Create("b", labelled("db", "1"))
	maps.Create("c", data("1")) // the expression fails on it
	maps.Patch("a", labelled("web", "2"))
	expectReceived(t, web, "ADDED a", "MODIFIED a")
	expectReceived(t, quiet, "MODIFIED a")
	e.Stop() // what is known until here is committed
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	maps.Patch("a", labelled("web", "3"))
	eventually(t, wide, "the third version", func() error {
		if n := len(received(web)); n < 3 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	e.Kill()

	maps.Patch("a", labelled("web", "4"))
	maps.Patch("b", map[string]any{"metadata": map[string]any{"labels": map[string]any{"more": "1"}}})
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	maps.Patch("a", map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": "other"}}})
	expectReceived(t, web, "ADDED a", "MODIFIED a", "DELETED a")
	e.Stop()
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	maps.Delete("a")
	expectReceived(t, quiet, "MODIFIED a", "DELETED a")
	expectReceived(t, silent, "ADDED a", "MODIFIED a", "DELETED a")
	e.WaitSettled(wide)
	checkDifferences(t, eventsOf(web), eventsOf(old))
	for _, event := range eventsOf(quiet) {
		if !strings.HasPrefix(event.Data.Object.Data["secret"], "redacted:hmac-sha256:") {
			t.Errorf("quiet got %+v", event.Data.Object)
		}
	}

	// Through a gap: a deletion that was missed goes to the pipelines that have the object, with its last known state, and to those that had it.
	maps.Create("d", labelled("web", "1"))
	expectReceived(t, web, "ADDED a", "MODIFIED a", "DELETED a", "ADDED d")
	maps.Create("e", labelled("web", "1"))
	maps.Patch("e", labelled("other", "2"))
	expectReceived(t, web, "ADDED a", "MODIFIED a", "DELETED a", "ADDED d", "ADDED e", "DELETED e")
	e.WaitSettled(wide)
	e.Stop()
	maps.Delete("d")
	maps.Delete("e")
	maps.Delete("b")
	if _, err := plane(t).CompactEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := plane(t).RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	startExporter(t, plane(t).KubeconfigFile(), text)
	eventually(t, wide, "the deletion, and the gap record", func() error {
		got := received(web)
		gaps := len(got)
		got = slices.DeleteFunc(got, func(s string) bool { return s == "GAP " })
		gaps -= len(got)
		if want := []string{"ADDED a", "MODIFIED a", "DELETED a", "ADDED d", "ADDED e", "DELETED e", "DELETED inferred d"}; gaps == 0 || !slices.Equal(slices.Compact(got), want) {
			return fmt.Errorf("got %d gap records, and %q", gaps, got)
		}
		return nil
	})
	eventually(t, wide, "what was missed", func() error {
		missed := slices.DeleteFunc(received(old), func(s string) bool { return !strings.Contains(s, "inferred") })
		slices.Sort(missed)
		if !slices.Equal(missed, []string{"DELETED inferred b", "DELETED inferred d", "DELETED inferred e"}) {
			return fmt.Errorf("got %q", missed)
		}
		return nil
	})
	eventually(t, wide, "the deletions of what silent had", func() error {
		got := slices.DeleteFunc(received(silent), func(s string) bool { return !strings.HasPrefix(s, "DELETED") })
		slices.Sort(got)
		if !slices.Equal(got, []string{"DELETED a", "DELETED inferred d", "DELETED inferred e"}) {
			return fmt.Errorf("got %q", got)
		}
		return nil
	})
	for _, e := range eventsOf(silent) {
		hidden := e.Data.Type == "DELETED" && e.Data.Object.Metadata.Name != "d"
		if o := e.Data.Object; hidden && (!e.Data.FinalStateUnknown || o.Data != nil || len(o.Metadata.Labels) != 1 || o.Metadata.Labels["region"] != "eu") {
			t.Errorf("silent got %+v", e.Data)
		}
	}
	events := slices.DeleteFunc(eventsOf(web), func(e event) bool { return e.Data.Type == "GAP" })
	if last := events[len(events)-1].Data.Object; last.Data["value"] != "1" || last.Metadata.Labels["region"] != "eu" || last.Data["secret"] != "" {
		t.Errorf("the last known state is %+v", last)
	}
}

// checkDifferences applies each patch to the version that it names, and compares old objects with what was sent as new.
func checkDifferences(tb testing.TB, patches, olds []event) {
	tb.Helper()
	sent := map[string]json.RawMessage{} // by resource version
	applied := 0
	for _, e := range patches {
		d := e.Data
		if d.Type == "MODIFIED" {
			patch, err := jsonpatch.DecodePatch(d.Patch)
			if err != nil {
				tb.Fatalf("%s: %v", d.Patch, err)
			}
			made, err := patch.Apply(sent[d.OldResourceVersion])
			if err != nil || !jsonpatch.Equal(made, d.Raw) {
				tb.Errorf("%s of version %s makes %s (%v), want %s", d.Patch, d.OldResourceVersion, made, err, d.Raw)
			}
			applied++
		}
		sent[d.Object.Metadata.ResourceVersion] = d.Raw
	}
	if applied < 2 {
		tb.Errorf("%d patches, want one before the crash and one after", applied)
	}
	clear(sent)
	compared := 0
	for _, e := range olds {
		d := e.Data
		if d.OldResourceVersion != "" {
			if before, ok := sent[d.OldResourceVersion]; !ok || !jsonpatch.Equal(before, d.OldObject) {
				tb.Errorf("the previous version %s is %s, was sent as %s", d.Object.Metadata.ResourceVersion, d.OldObject, before)
			}
			compared++
		}
		if d.OldObjectKnown != nil {
			tb.Errorf("the previous version %s is not known", d.Object.Metadata.ResourceVersion)
		}
		sent[d.Object.Metadata.ResourceVersion] = d.Raw
	}
	if compared < 4 {
		tb.Errorf("%d old objects", compared)
	}
}
