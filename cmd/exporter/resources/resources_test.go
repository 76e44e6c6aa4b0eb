package resources

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/source"
)

func served(group, version, plural string, others ...string) source.Served {
	gvr := schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
	return source.Served{GroupVersionResource: gvr, Names: append([]string{plural}, others...), Namespaced: true}
}

func TestFind(t *testing.T) {
	c := &Catalog{failed: []schema.GroupVersion{{Group: "metrics.k8s.io", Version: "v1beta1"}, {Group: "batch", Version: "v2"}}, served: []source.Served{
		served("", "v1", "events", "event", "ev"),
		served("", "v1", "services", "service", "svc"),
		served("apps", "v1", "deployments", "deployment", "deploy"),
		served("apps", "v1beta1", "deployments", "deployment", "deploy"),
		served("events.k8s.io", "v1", "events", "event", "ev"),
		served("serving.knative.dev", "v1", "services", "service", "ksvc"),
		served("example.com", "v1", "widgets", "widget", "", "wd"),
		served("batch", "v1", "jobs", "job"),
	}}
	for name, want := range map[string]string{
		"deployments": "apps/v1/deployments", "deploy": "apps/v1/deployments", "Deployment": "apps/v1/deployments",
		"deployments.apps": "apps/v1/deployments", "deploy.v1.apps": "apps/v1/deployments", "deployments.v1beta1.apps": "apps/v1beta1/deployments",
		"apps/v1/deployments": "apps/v1/deployments", "apps/v1beta1/deploy": "apps/v1beta1/deployments",
		"ev.events.k8s.io": "events.k8s.io/v1/events", "events.v1.events.k8s.io": "events.k8s.io/v1/events", "v1/events": "v1/events", "events.v1.": "v1/events",
		"events.v1": "v1/events", "ksvc": "serving.knative.dev/v1/services", "widgets.example.com": "example.com/v1/widgets",
		"wd, deploy,widget": "example.com/v1/widgets apps/v1/deployments",
		"jobs":              `no resource "jobs" that can be watched; did you mean batch/v1/jobs?; [metrics.k8s.io/v1beta1 batch/v2] cannot be read`,
		"deploy/web":        `no resource "deploy/web" that can be watched; did you mean deploy with the field selector metadata.name=web?`,
		"events":            `"events" stands for v1/events and for events.k8s.io/v1/events: name one of them`,
		"service":           `"service" stands for v1/services and for serving.knative.dev/v1/services: name one of them`,
		"deployments.batch": `the API server has no resource "deployments.batch" that can be watched; did you mean apps/v1beta1/deployments?; [metrics.k8s.io/v1beta1 batch/v2] cannot be read`,
		"deploymets":        `the API server has no resource "deploymets" that can be watched; did you mean deployments?; [metrics.k8s.io/v1beta1 batch/v2] cannot be read`,
		"":                  `the API server has no resource "" that can be watched`,
		"apps/v2/deploy":    `no resource "apps/v2/deploy" that can be watched; did you mean apps/`,
	} {
		found, err := c.Find([]string{name})
		var names []string
		for _, s := range found {
			names = append(names, delta.ResourceName(s.GroupVersionResource))
		}
		got := strings.Join(names, " ")
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%q: got  %s\nwant %s", name, got, want)
		}
	}
	if names := strings.Join(c.Names(), " "); names != "events services deployments.apps events.events.k8s.io services.serving.knative.dev widgets.example.com jobs.batch" {
		t.Errorf("got %s", names)
	}
}

func TestResolve(t *testing.T) {
	gvr := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	c := &Catalog{served: []source.Served{served("apps", "v1", "deployments", "deployment", "deploy"), served("", "v1", "pods", "po")}}
	loaded := func(sources ...string) *config.Config {
		text := "cluster: c\npipelines: [{name: p, sink: out}, {name: first, sources: [s0], sink: out}]\nsinks: [{name: out, stdout: {}}]\nsources:\n"
		for n, resources := range sources {
			text += fmt.Sprintf("  - {name: s%d, resources: [%s]}\n", n, resources)
		}
		parsed, warnings, err := config.Parse([]byte(text), "file", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
		if err != nil || len(warnings) != len(parsed.Unresolved()) {
			t.Fatal(err, warnings)
		}
		return parsed
	}
	for _, full := range []string{"apps/v1/deployments", "deploy", "deployments.apps"} {
		config := loaded(full, "po")
		if err := c.Resolve(config); err != nil || config.Sources[0].Resources[0] != gvr || len(config.Unresolved()) > 0 {
			t.Errorf("%s: got %v, %v", full, config.Sources, err)
		}
	}
	for want, sources := range map[string][]string{
		`pipeline "p" takes apps/v1/deployments twice, under two names`: {"apps/v1/deployments", "deploy"},
		`pipeline "p" takes v1/pods twice, under two names`:             {"po, pods"},
		`source "s1": the API server has no resource "gone"`:            {"pods", "gone"},
	} {
		if err := c.Resolve(loaded(sources...)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
