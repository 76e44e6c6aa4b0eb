package examples_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/asyncapi"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestAsyncAPIIsTrue sends changes and the marks of snapshots in every form to Kafka, NATS, webhooks and a file: each message
// is as the document says of its channel and its form, and no form of the document is missing.
func TestAsyncAPIIsTrue(t *testing.T) {
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	prepareCluster(t, plane.Config())
	broker, bus, hook := kafkatest.Start(t), natstest.StartCluster(t, 1), webhooktest.Start(t)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	// A route is a pipeline, its sink, and the forms that arrive there.
	type route struct {
		name, channel, place string
		forms                []string
	}
	var routes []route
	var pipelines, sinks strings.Builder
	add := func(r route, format, sink string) {
		routes = append(routes, r)
		fmt.Fprintf(&pipelines, "  - {name: %s, sink: %s, format: %s}\n", r.name, r.name, format)
		fmt.Fprintf(&sinks, "  - {name: %s, %s}\n", r.name, sink)
	}
	for _, f := range []struct {
		name, format string
		more         []string // what is beside the changes: gaps and marks in another form
	}{
		{"cloudevents", "cloudevents", nil},
		{"cloudeventsBinary", "cloudevents-binary", nil},
		{"knative", "cloudevents, profile: knative", []string{"cloudevents"}},
		{"knativeBinary", "cloudevents-binary, profile: knative", []string{"cloudeventsBinary"}},
		{"json", "json", nil},
		{"raw", "raw", []string{"json"}},
	} {
		forms := append([]string{f.name}, f.more...)
		for key, forms := range map[string][]string{"object": forms, "uid": append(slices.Clone(forms), "tombstone"), "namespace": forms, "none": forms} {
			topic := "k8s-" + f.name
			if key != "object" {
				topic += "-" + key
			}
			broker.CreateTopic(topic, 1)
			add(route{"kafka-" + f.name + "-" + key, "kafka", topic, forms}, f.format,
				fmt.Sprintf("kafka: {brokers: [%q], topic: %s, key: %s, tombstones: %t}", broker.Addr(), topic, key, key == "uid"))
		}
		add(route{"nats-" + f.name, "nats", f.name, forms}, f.format,
			fmt.Sprintf(`nats: {urls: [%q], subject: "%s.{resource}", stream: {name: %s, create: true}}`, bus.URLs()[0], f.name, f.name))
		add(route{"webhook-" + f.name, "webhook", "/" + f.name, forms}, f.format,
			fmt.Sprintf("webhook: {url: %q, batch: {maxRecords: 1}, signature: {secretFile: %q}}", hook.URL()+"/"+f.name, secret))
		if !strings.HasSuffix(f.name, "Binary") {
			batch := f.name + "Batch"
			add(route{"webhook-" + batch, "webhook", "/" + batch, []string{batch}}, f.format,
				fmt.Sprintf("webhook: {url: %q, batch: {maxRecords: 9}, signature: {secretFile: %q}}", hook.URL()+"/"+batch, secret))
		}
		file := filepath.Join(dir, f.name)
		lines := []string{strings.TrimSuffix(forms[0], "Binary")}
		if strings.HasPrefix(f.name, "knative") {
			lines = append(lines, "cloudevents")
		}
		add(route{"file-" + f.name, "lines", file, lines}, f.format, fmt.Sprintf("file: {path: %q, sync: false}", file))
	}
	both := newExporters(t, plane, namespace, fmt.Sprintf("sources: [{name: s, resources: [v1/configmaps]}]\npipelines:\n%ssinks:\n%s", &pipelines, &sinks))
	both[0].Start()
	leader(t, [2]*exporter{both[0], both[0]}, (*exporter).leads)
	result, err := load.Run(t.Context(), plane.Config(), load.Options{
		Resources: watched[:1], Namespaces: []string{namespace}, Objects: 3, Operations: 30, Prefix: "asyncapi",
	})
	if err != nil || result.Deleted == 0 || result.Updated == 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	// The last change, which is waited for, on an object that existed before.
	_, err = client.CoreV1().ConfigMaps("kube-system").Patch(t.Context(), "extension-apiserver-authentication", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"the-last":"one"}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}

	arrived := func(r route) (all []asyncapi.Message) {
		switch r.channel {
		case "kafka":
			records, err := broker.ReadAll(t.Context(), r.place)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range records {
				all = append(all, m.Message())
			}
		case "nats":
			messages, err := bus.ReadAll(t.Context(), r.place)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				all = append(all, m.Message())
			}
		case "webhook":
			for _, m := range hook.All() {
				if m.Path == r.place {
					all = append(all, m.Message())
				}
			}
		case "lines":
			text, err := os.ReadFile(r.place)
			if err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(text) {
				if bytes.HasSuffix(line, []byte("\n")) { // else it is being written
					all = append(all, asyncapi.Message{Body: line})
				}
			}
		}
		return all
	}
	found := map[string]map[string]int{}
	for _, r := range routes {
		var all []asyncapi.Message
		eventually(t, r.name, func() error {
			all = arrived(r)
			if !slices.ContainsFunc(all, func(m asyncapi.Message) bool { return bytes.Contains(m.Body, []byte("the-last")) }) {
				return fmt.Errorf("%d messages", len(all))
			}
			return nil
		})
		seen := map[string]int{}
		for _, m := range all {
			forms, err := asyncapi.Check(r.channel, m)
			if err != nil {
				t.Errorf("%s: %v", r.name, err)
				break
			}
			n := slices.IndexFunc(forms, func(form string) bool { return slices.Contains(r.forms, form) })
			if n < 0 {
				t.Errorf("%s: %v, want one of %v: %q\n%.500s", r.name, forms, r.forms, m.Headers, m.Body)
				break
			}
			seen[forms[n]]++
		}
		for _, form := range r.forms {
			if seen[form] == 0 {
				t.Errorf("%s: %v of %d messages, want %v", r.name, seen, len(all), r.forms)
			}
			if found[r.channel] == nil {
				found[r.channel] = map[string]int{}
			}
			found[r.channel][form] += seen[form]
		}
	}
	document, err := asyncapi.Document()
	if err != nil {
		t.Fatal(err)
	}
	for channel, c := range document["channels"].(map[string]any) {
		for form := range c.(map[string]any)["messages"].(map[string]any) {
			if found[channel][form] == 0 {
				t.Errorf("%s: no message is %s", channel, form)
			}
		}
	}

	list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for language, format := range map[string]string{"go": "cloudeventsBinary", "python": "cloudevents", "java": "cloudeventsBinary"} {
		t.Run("as in the README, in "+language, func(t *testing.T) {
			c := newShown(t, language, broker.Addr(), "k8s-"+format)
			c.Start()
			eventually(t, c.name, func() error {
				c.expectRunning()
				rows, err := c.rows("SELECT count(*) FROM existing")
				if err == nil && rows[0][0] != float64(len(list.Items)) {
					err = fmt.Errorf("%v of %d objects", rows[0][0], len(list.Items))
				}
				return err
			})
			c.process.Kill()
		})
	}
}
