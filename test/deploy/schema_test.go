package deploy_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/yannh/kubeconform/pkg/validator"
	"k8s.io/client-go/discovery"

	"github.com/kubeferry/kubeferry/test/controlplane"
)

// testSchemas has kubeconform check everything that is rendered against the API server's own schemas, which have the
// CustomResourceDefinitions of PodMonitor and PrometheusRule too.
func testSchemas(t *testing.T, plane *controlplane.ControlPlane) {
	schemas := filepath.Join(writeSchemas(t, plane), "{{.Group}}.{{.ResourceAPIVersion}}.{{.ResourceKind}}.json")
	conform, err := validator.New([]string{schemas}, validator.Opts{Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	rendered := map[string]*manifests{"deploy/base": render(t, "base"), "deploy/example": render(t, "example")}
	for _, values := range []string{
		"", all, all + "persistence: {enabled: true}", alone, documentedValues(t),
		"config: {sources: [{name: s, resources: [v1/pods], namespaces: {include: [shop]}}]}", "serviceMonitor: {enabled: true}",
	} {
		rendered["the chart with "+values] = renderChart(t, "audit", "audit", values)
	}
	for name, m := range rendered {
		results := conform.Validate(name, io.NopCloser(bytes.NewReader(m.text)))
		valid := 0
		for _, result := range results {
			if result.Status == validator.Valid {
				valid++
			} else if result.Status != validator.Empty { // what is before the first ---
				t.Errorf("%s: %v\n%s", name, result.Err, result.Resource.Bytes)
			}
		}
		if valid != len(m.objects) {
			t.Errorf("%s: %d of %d objects are valid", name, valid, len(m.objects))
		}
	}
	monitored := string(rendered["the chart with "+all].text)
	for right, wrong := range map[string]string{ // each is only wrong in what it is about
		"terminationGracePeriodSeconds:": "terminationGraceSeconds:", "readOnlyRootFilesystem: true": `readOnlyRootFilesystem: "true"`,
		"podMetricsEndpoints:": "podMetricEndpoints:", "kind: PrometheusRule": "kind: PrometheusRules", "\n  replicas: 2": "\n  replicas: 2\n  replicas: 3",
	} {
		text := strings.Replace(monitored, right, wrong, 1)
		invalid := 0
		for _, result := range conform.Validate(wrong, io.NopCloser(strings.NewReader(text))) {
			if result.Status == validator.Invalid || result.Status == validator.Error {
				invalid++
			}
		}
		if invalid != 1 {
			t.Errorf("with %q for %q, %d objects are not valid", wrong, right, invalid)
		}
	}
}

// writeSchemas writes a file for each kind that the API server has, which points into a file for each of its groups and versions.
func writeSchemas(t *testing.T, plane *controlplane.ControlPlane) (dir string) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // a CustomResourceDefinition is served a little before its schema
		paths, err := client.OpenAPIV3().Paths()
		if err != nil {
			t.Fatal(err)
		}
		for path, of := range paths {
			text, err := of.Schema("application/json")
			if err != nil {
				t.Fatal(err)
			}
			var document struct {
				Components struct {
					Schemas map[string]map[string]any `json:"schemas"`
				} `json:"components"`
			}
			if err := json.Unmarshal(text, &document); err != nil {
				t.Fatal(err)
			}
			file := strings.ReplaceAll(path, "/", "-") + ".json"
			for name, schema := range document.Components.Schemas {
				refuseUnknown(schema)
				kinds, _ := schema["x-kubernetes-group-version-kind"].([]any)
				for _, one := range kinds {
					kind := one.(map[string]any)
					group, version := kind["group"], kind["version"]
					if group == "" {
						group = version
					}
					pointer := fmt.Sprintf(`{"$ref": "%s#/components/schemas/%s"}`, file, name)
					write(t, filepath.Join(dir, strings.ToLower(fmt.Sprintf("%v.%v.%v.json", group, version, kind["kind"]))), pointer)
				}
			}
			closed, err := json.Marshal(document)
			if err != nil {
				t.Fatal(err)
			}
			write(t, filepath.Join(dir, file), string(closed))
		}
		_, noMonitor := os.Stat(filepath.Join(dir, "monitoring.coreos.com.v1.podmonitor.json"))
		_, noService := os.Stat(filepath.Join(dir, "monitoring.coreos.com.v1.servicemonitor.json"))
		_, noRule := os.Stat(filepath.Join(dir, "monitoring.coreos.com.v1.prometheusrule.json"))
		if noMonitor == nil && noService == nil && noRule == nil {
			return dir
		}
		if time.Now().After(end) {
			t.Fatal(noMonitor, noService, noRule)
		}
	}
}

// refuseUnknown has a schema, and those within, refuse fields that it does not list.
func refuseUnknown(schema any) {
	switch schema := schema.(type) {
	case []any:
		for _, one := range schema {
			refuseUnknown(one)
		}
	case map[string]any:
		for _, one := range schema {
			refuseUnknown(one)
		}
		_, fields := schema["properties"].(map[string]any)
		if _, more := schema["additionalProperties"]; fields && !more && schema["type"] == "object" && schema["x-kubernetes-preserve-unknown-fields"] != true {
			schema["additionalProperties"] = false
		}
	}
}
