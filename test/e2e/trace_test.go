package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// traced is what `kubeferry trace -o json` prints.
type traced struct {
	Now       string
	Watches   []struct{ Known bool }
	Pipelines []struct {
		Pipeline, State, Why string
		LastDelivered        time.Time
		Filter               *struct {
			Index     int
			Condition string
		}
		Waiting struct {
			Total   int
			Records []struct {
				Type, ResourceVersion string
				Attempts              int
				OnDisk                bool
			}
			Behind string
		}
	}
}

// TestTrace follows objects to where they are: delivered, filtered by their content and by what happened to them, dead, waiting
// behind a record that is refused, behind a sink that is away and on disk, not watched for each reason there is, gone, and never there.
func TestTrace(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	prefix := unique("trace")
	namespace, excluded := prefix+"-a", prefix+"-b"
	if err := load.CreateNamespaces(t.Context(), config, namespace, excluded); err != nil {
		t.Fatal(err)
	}
	labelled := func(value string) map[string]any {
		fields := data(value)
		fields["metadata"] = map[string]any{"labels": map[string]any{"app": "web"}}
		return fields
	}
	objects := objectsIn(t, config, configMaps, namespace)
	stuck, dead := string(objects.Create("stuck", labelled("1")).GetUID()), string(objects.Create("dead", labelled("1")).GetUID())
	hook, away := webhooktest.Start(t), webhooktest.Start(t)
	of := func(uid string) func(string) bool { return func(id string) bool { return strings.Contains(id, uid) } }
	hook.Use(webhooktest.WhenID(of(stuck), webhooktest.Answer{Status: http.StatusServiceUnavailable, Body: "busy\x1b[31m"},
		webhooktest.WhenID(of(dead), webhooktest.Answer{Status: http.StatusUnprocessableEntity, Body: "bad"}, webhooktest.Accept())))
	away.Use(webhooktest.Status(http.StatusServiceUnavailable))
	text := fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources:
  - name: shop
    resources: [v1/configmaps, autoscaling/v1/horizontalpodautoscalers]
    namespaces: {include: ["%s-*"], exclude: [%s]}
    labelSelector: app=web
pipelines:
  - {name: audit, sink: hook}
  - {name: named, sink: hook, filters: [{types: [ADDED, MODIFIED, DELETED]}, {expr: 'object.metadata.name.startsWith("web")'}]}
  - {name: deletions, sink: hook, filters: [{types: [DELETED]}]}
  - {name: far, sink: away, backlog: {maxBytes: 64Ki}}
sinks:
  - {name: hook, webhook: {url: %q}}
  - {name: away, webhook: {url: %q}}
`, t.TempDir(), prefix, excluded, hook.URL(), away.URL())
	began := time.Now()
	file := writeConfig(t, t.TempDir(), text)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.leaves = true
	e.WaitReady()
	objects.Patch("stuck", data("2"))
	last := objects.Patch("stuck", data("3")).GetResourceVersion()
	objects.Create("web-ok", labelled("1"))
	objects.Create("gone", labelled("1"))
	objects.Delete("gone")
	objects.Create("plain", data("1"))
	objectsIn(t, config, configMaps, excluded).Create("web", labelled("1"))
	for n := range 40 {
		objects.Create(fmt.Sprintf("web-%d", n), labelled(noise(4096)))
	}

	trace := func(resource, object string) traced {
		t.Helper()
		output, code := runToEnd(t, "trace", "--config", file, resource, object, "-o", "json")
		var answer traced
		if err := json.Unmarshal([]byte(output), &answer); err != nil || code != 0 {
			t.Fatalf("%s %s: exit code %d and\n%s", resource, object, code, output)
		}
		return answer
	}
	in := func(name string) string { return namespace + "/" + name }
	for _, tt := range []struct {
		resource, object string
		states           string   // of the pipelines
		why              []string // of each
	}{
		{"configmaps", in("web-ok"), "delivered delivered filtered waiting", []string{"nothing of it waits", "up to version", "passes filters[0]", "the sink, which is away since"}},
		{"cm", in("stuck"), "waiting filtered filtered waiting", []string{"its own first record, which failed", "does not pass filters[1]", "filters[0]", "the sink"}},
		{"configmap", in("dead"), "dead filtered filtered waiting", []string{"rejected", "filters[1]", "filters[0]", "the sink"}},
		{"v1/configmaps", in("web-39"), "delivered delivered filtered waiting", []string{"nothing", "nothing", "filters[0]", "the sink"}},
		{"configmaps", in("gone"), "delivered unknown delivered waiting", []string{"there is no such object any more", "never existed, or its DELETED", "any more", "the sink"}},
		{"configmaps", in("never"), "unknown unknown unknown unknown", []string{"there is no such object"}},
		{"configmaps", in("plain"), "not watched not watched not watched not watched", []string{`labelSelector "app=web" does not select it`}},
		{"configmaps", excluded + "/web", "not watched not watched not watched not watched", []string{`the namespaces of source "shop" leave`}},
		{"po", in("web"), "not watched not watched not watched not watched", []string{"none of its sources has v1/pods"}},
	} {
		eventually(t, wide, tt.resource+" "+tt.object, func() error {
			answer := trace(tt.resource, tt.object)
			var states []string
			for n, p := range answer.Pipelines {
				states = append(states, p.State)
				if n < len(tt.why) && !strings.Contains(p.Why, tt.why[n]) {
					return fmt.Errorf("%s: no %q in %q", p.Pipeline, tt.why[n], p.Why)
				}
			}
			if got := strings.Join(states, " "); got != tt.states {
				return fmt.Errorf("got %s, want %s", got, tt.states)
			}
			return nil
		})
	}
	for n, p := range trace("configmaps", in("web-ok")).Pipelines {
		if told := n < 2; p.LastDelivered.IsZero() == told || told && (p.LastDelivered.Before(began) || p.LastDelivered.After(time.Now())) {
			t.Errorf("web-ok: %s was last told at %v", p.Pipeline, p.LastDelivered)
		}
	}
	answer := trace("configmaps", in("stuck"))
	waiting := answer.Pipelines[0].Waiting
	if waiting.Total != 3 || waiting.Records[0].Type != "ADDED" || waiting.Records[0].Attempts == 0 || waiting.Records[2].ResourceVersion != last || answer.Now != last || !answer.Watches[0].Known {
		t.Errorf("stuck: got %+v", answer)
	}
	if filter := answer.Pipelines[1].Filter; filter.Index != 1 || filter.Condition != `object.metadata.name.startsWith("web")` {
		t.Errorf("stuck: got %+v", filter)
	}
	if late := trace("configmaps", in("web-39")).Pipelines[3].Waiting; late.Total != 1 || !late.Records[0].OnDisk {
		t.Errorf("web-39: got %+v", late)
	}
	for _, p := range trace("hpa", in("none")).Pipelines { // which the API server prefers in another version
		if p.State == "not watched" {
			t.Errorf("hpa: %s is %s: %s", p.Pipeline, p.State, p.Why)
		}
	}
	if failed := e.Metrics().sum("kubeferry_filter_errors_total"); failed != 0 {
		t.Errorf("tracing counted %v errors of filters", failed)
	}

	output, code := runToEnd(t, "trace", "-c", file, "cm", in("stuck"))
	for _, want := range []string{"v1/configmaps " + in("stuck"), "source shop: watching, position", "audit", "waiting", "busy", "MODIFIED " + last, `filters[1] expr: object.metadata.name.startsWith("web")`} {
		if !strings.Contains(output, want) || code != 0 {
			t.Errorf("as text: exit code %d, no %q in\n%s", code, want, output)
		}
	}
	if strings.Contains(output, "\x1b") {
		t.Errorf("an escape sequence of a receiver reaches the terminal:\n%q", output)
	}
	t.Log("\n" + output)
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"nonsense", in("web")}, 1, `no resource "nonsense"`},
		{[]string{"configmaps", "web-ok"}, 1, "name the object as NAMESPACE/NAME"},
		{[]string{"configmaps", "a/b/c"}, 2, "is no object"},
		{[]string{"configmaps", in("web"), "-o", "yaml"}, 2, "there are text and json"},
	} {
		if output, code := runToEnd(t, append([]string{"trace", "-c", file}, tt.args...)...); code != tt.code || !strings.Contains(output, tt.want) {
			t.Errorf("%q: exit code %d and\n%s", tt.args, code, output)
		}
	}
	e.Stop()
	if output, code := runToEnd(t, "trace", "-c", file, "cm", in("stuck")); code != 1 || !strings.Contains(output, "no kubeferry runs on") {
		t.Errorf("without kubeferry: exit code %d and\n%s", code, output)
	}
}

// TestExtendedTraceOfAStandby runs trace where a standby runs, which has no watches: the answer names the leader, for other commands too.
func TestExtendedTraceOfAStandby(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "standby")
	grantOne(t, plane(t).Config(), namespace, "", "configmaps")
	hook := webhooktest.Start(t)
	text := hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	r := newReplicas(t, namespace, text)
	r.patient()
	r.Start()
	r.Start()
	_, others := r.WaitInSync()
	file := writeConfig(t, t.TempDir(), fmt.Sprintf("stateDir: %q\n", others[0].dir)+text)
	for _, args := range [][]string{{"trace", "cm", namespace + "/a"}, {"replay"}, {"snapshot", "--pipeline", "p"}} {
		if output, code := runToEnd(t, append(args, "-c", file)...); code != 1 || !strings.Contains(output, "is a standby") {
			t.Errorf("%q: exit code %d and\n%s", args, code, output)
		}
	}
}
