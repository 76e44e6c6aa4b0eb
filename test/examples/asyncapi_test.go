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

	"github.com/santhosh-tekuri/jsonschema/v6"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// asyncAPI is docs/schema/asyncapi.yaml.
type asyncAPI struct {
	t        *testing.T
	document map[string]any
	compiler *jsonschema.Compiler
}

// in reads a place of the document, through references: of "a", "b" the member b of a.
func (a *asyncAPI) in(value any, path ...string) map[string]any {
	a.t.Helper()
	for {
		members, _ := value.(map[string]any)
		if ref, ok := members["$ref"].(string); ok && strings.HasPrefix(ref, "#/") {
			value = a.in(a.document, strings.Split(ref[2:], "/")...)
			continue
		}
		if len(path) == 0 {
			if members == nil {
				a.t.Fatalf("the document has not what is referred to: %v", value)
			}
			return members
		}
		value, path = members[path[0]], path[1:]
	}
}

// declared is a message of a channel, with what its schemas say.
type declared struct {
	name, contentType string
	headers, payload  *jsonschema.Schema
	known             map[string]bool // the headers that it names
}

// messages returns those of a channel.
func (a *asyncAPI) messages(channel string) []declared {
	a.t.Helper()
	var all []declared
	for name := range a.in(a.document, "channels", channel, "messages") {
		m := a.in(a.document, "channels", channel, "messages", name)
		d := declared{name: name, contentType: m["contentType"].(string), known: map[string]bool{}}
		d.payload = a.compile(channel+"-"+name+"-payload.json", a.in(m, "payload", "schema"))
		headers := a.in(m, "headers")
		d.headers = a.compile(channel+"-"+name+"-headers.json", map[string]any{"components": a.document["components"], "allOf": []any{headers}})
		parts, _ := headers["allOf"].([]any)
		for _, part := range append(parts, headers) {
			properties, _ := a.in(part)["properties"].(map[string]any)
			for header := range properties {
				d.known[strings.ToLower(header)] = true
			}
		}
		all = append(all, d)
	}
	return all
}

func (a *asyncAPI) compile(name string, schema any) *jsonschema.Schema {
	a.t.Helper()
	if err := a.compiler.AddResource("mem:///"+name, schema); err != nil {
		a.t.Fatal(err)
	}
	compiled, err := a.compiler.Compile("mem:///" + name)
	if err != nil {
		a.t.Fatal(err)
	}
	return compiled
}

func loadAsyncAPI(t *testing.T) *asyncAPI {
	t.Helper()
	text, err := yaml.ToJSON([]byte(read(t, filepath.Join("..", "..", "docs", "schema", "asyncapi.yaml"))))
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	records, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, filepath.Join("..", "..", "docs", "schema", "records.schema.json"))))
	if err != nil {
		t.Fatal(err)
	}
	a := &asyncAPI{t: t, document: document.(map[string]any), compiler: jsonschema.NewCompiler()}
	a.compiler.AssertFormat()
	delete(records.(map[string]any), "$id") // it is found beside the document
	if err := a.compiler.AddResource("mem:///records.schema.json", records); err != nil {
		t.Fatal(err)
	}
	return a
}

// TestAsyncAPI validates the document against AsyncAPI's own schema.
func TestAsyncAPI(t *testing.T) {
	a := loadAsyncAPI(t)
	official, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, filepath.Join("testdata", "asyncapi-3.0.0.schema.json"))))
	if err != nil {
		t.Fatal(err)
	}
	const id = "http://asyncapi.com/definitions/3.0.0/asyncapi.json"
	compiler := jsonschema.NewCompiler()
	if err := compiler.AddResource(id, official); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(a.document); err != nil {
		t.Error(err)
	}
	a.document["channels"].(map[string]any)["kafka"].(map[string]any)["place"] = "x"
	if schema.Validate(a.document) == nil {
		t.Error("a mistake is none for the schema")
	}
}

// delivery is a message as it arrived.
type delivery struct {
	contentType string
	headers     map[string]any
	body        []byte
}

func newDelivery(names func(yield func(name, value string)), body []byte) delivery {
	d := delivery{headers: map[string]any{}, body: body}
	names(func(name, value string) {
		if strings.EqualFold(name, "content-type") {
			name, d.contentType = "content-type", value
		}
		if strings.HasPrefix(strings.ToLower(name), "webhook-") || strings.HasPrefix(strings.ToLower(name), "ce-") || strings.HasPrefix(strings.ToLower(name), "kubeferry-") {
			name = strings.ToLower(name)
		}
		d.headers[name] = value
	})
	return d
}

// fits reports whether a message is as declared: its content type, its headers, of which none of ours is missing in the declaration, and its
// body.
func (d declared) fits(m delivery) error {
	if m.contentType != d.contentType {
		return fmt.Errorf("content type %q", m.contentType)
	}
	for name := range m.headers {
		if name = strings.ToLower(name); !d.known[name] && (strings.HasPrefix(name, "ce") || strings.Contains(name, "kubeferry") || strings.HasPrefix(name, "webhook-")) {
			return fmt.Errorf("it has not declared the header %s", name)
		}
	}
	if err := d.headers.Validate(m.headers); err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(m.body))
	if err != nil {
		return err
	}
	return d.payload.Validate(value)
}

// TestAsyncAPIIsTrue sends changes and the marks of snapshots in every format to Kafka, NATS and webhooks: each message is as the document
// says of its channel and its format.
func TestAsyncAPIIsTrue(t *testing.T) {
	a := loadAsyncAPI(t)
	plane, err := controlplane.Start(t.Context(), controlplane.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(plane.Stop)
	prepareCluster(t, plane.Config())
	broker, bus, hook := kafkatest.Start(t), natstest.StartCluster(t, 1), webhooktest.Start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("whsec_"+base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	type route struct{ name, format, channel, message string }
	var routes []route
	var pipelines, sinks strings.Builder
	for _, format := range []string{"cloudevents", "cloudevents-binary", "json", "raw"} {
		message := strings.Replace(format, "-binary", "Binary", 1)
		add := func(channel, suffix, sink string) {
			r := route{channel + "-" + format + suffix, format, channel, message + suffix}
			routes = append(routes, r)
			fmt.Fprintf(&pipelines, "  - {name: %s, sink: %s, format: %s}\n", r.name, r.name, format)
			fmt.Fprintf(&sinks, "  - {name: %s, %s}\n", r.name, sink)
		}
		broker.CreateTopic("k8s-"+format, 1)
		add("kafka", "", fmt.Sprintf("kafka: {brokers: [%q], topic: k8s-%s}", broker.Addr(), format))
		add("nats", "", fmt.Sprintf(`nats: {urls: [%q], subject: "%s.{resource}", stream: {name: %s, create: true}}`, bus.URLs()[0], format, format))
		add("webhook", "", fmt.Sprintf("webhook: {url: %q, batch: {maxRecords: 1}, signature: {secretFile: %q}}", hook.URL()+"/"+format, secret))
		if format != "cloudevents-binary" {
			add("webhook", "Batch", fmt.Sprintf("webhook: {url: %q, batch: {maxRecords: 9}, signature: {secretFile: %q}}", hook.URL()+"/"+format+"Batch", secret))
		}
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

	arrived := func(r route) (all []delivery) {
		switch r.channel {
		case "kafka":
			records, err := broker.ReadAll(t.Context(), "k8s-"+r.format)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range records {
				all = append(all, newDelivery(func(yield func(name, value string)) {
					for name, value := range m.Headers {
						yield(name, value)
					}
				}, m.Value))
			}
		case "nats":
			messages, err := bus.ReadAll(t.Context(), r.format)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range messages {
				all = append(all, newDelivery(func(yield func(name, value string)) {
					for name := range m.Header {
						yield(name, m.Header.Get(name))
					}
				}, m.Data))
			}
		case "webhook":
			for _, m := range hook.Requests() {
				if m.Path == "/"+r.message || m.Path == "/"+r.format && r.message != r.format+"Batch" {
					all = append(all, newDelivery(func(yield func(name, value string)) {
						for name := range m.Header {
							yield(name, m.Header.Get(name))
						}
					}, m.Body))
				}
			}
		}
		return all
	}
	channels := map[string][]declared{}
	for _, channel := range []string{"kafka", "nats", "webhook"} {
		channels[channel] = a.messages(channel)
	}
	for _, r := range routes {
		var all []delivery
		eventually(t, r.name, func() error {
			all = arrived(r)
			if !slices.ContainsFunc(all, func(m delivery) bool { return bytes.Contains(m.body, []byte("the-last")) }) {
				return fmt.Errorf("%d messages", len(all))
			}
			return nil
		})
		seen := map[string]int{}
		for _, m := range all {
			found := false
			var faults []string
			for _, d := range channels[r.channel] {
				// Marks of the format raw are as in json.
				if d.name != r.message && (r.message != "raw" || d.name != "json") {
					continue
				}
				err := d.fits(m)
				if err == nil {
					found = true
					seen[d.name]++
					break
				}
				faults = append(faults, d.name+": "+err.Error())
			}
			if !found {
				t.Errorf("%s: %v\n%v\n%.500s", r.name, faults, m.headers, m.body)
				break
			}
		}
		if seen[r.message] < 3 {
			t.Errorf("%s: %v of %d messages", r.name, seen, len(all))
		}
	}

	list, err := client.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for language, format := range map[string]string{"go": "cloudevents-binary", "python": "cloudevents", "java": "cloudevents-binary"} {
		t.Run("as in the README, in "+language, func(t *testing.T) {
			c := newShown(t, language, broker.Addr(), "k8s-"+format)
			c.Start()
			eventually(t, c.name, func() error {
				c.expectRunning()
				rows, err := c.rows("SELECT count(*) FROM objects WHERE NOT deleted")
				if err == nil && rows[0][0] != float64(len(list.Items)) {
					err = fmt.Errorf("%v of %d objects", rows[0][0], len(list.Items))
				}
				return err
			})
			c.process.Kill()
		})
	}
}
