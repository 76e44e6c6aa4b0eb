package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/opensearchtest"
)

// TestExtendedOpenSearch runs examples/recipes/opensearch.yaml with a node of OpenSearch, which has the index template that the file names:
// each change is a document, those of Deployments with labels that would collide and with a text that is long for a field too. None is
// refused.
func TestExtendedOpenSearch(t *testing.T) {
	beside(t)
	node := opensearchtest.Start(t)
	namespace := newNamespace(t, "search")
	recipe := readRecipe(t, "opensearch")
	_, template, _ := strings.Cut(recipe, "#   PUT _index_template/kubernetes\n")
	template, _, _ = strings.Cut(template, "\ncluster:")
	node.Do(http.MethodPut, "/_index_template/kubernetes", []byte(strings.ReplaceAll(template, "#", "")))

	for part, mine := range map[string]string{
		"cluster: prod-eu-1\n":         "",
		"stateDir: /var/lib/kubeferry": fmt.Sprintf("stateDir: %q", filepath.Join(t.TempDir(), "state")),
		"- name: workloads\n":          "- name: workloads\n    namespaces: {include: [" + namespace + "]}\n",
		"      auth: {basic: {username: kubeferry, passwordFile: \"${OPENSEARCH_PASSWORD_FILE}\"}}\n": "",
	} {
		if strings.Count(recipe, part) != 1 {
			t.Fatalf("the recipe has not %q", part)
		}
		recipe = strings.Replace(recipe, part, mine, 1)
	}
	e := startExporter(t, plane(t).KubeconfigFile(), recipe, func(o *process.Options) {
		o.Env = append(o.Env, "OPENSEARCH_URL="+node.URL+"/_bulk")
	})
	e.WaitReady()

	deployments := objectsIn(t, plane(t).Config(), schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}, namespace)
	deployment := func(name string, metadata map[string]any) {
		labels := map[string]any{"app": "web"}
		deployments.Create(name, map[string]any{"metadata": metadata, "spec": map[string]any{
			"selector": map[string]any{"matchLabels": labels},
			"template": map[string]any{
				"metadata": map[string]any{"labels": labels},
				"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
			},
		}})
	}
	deployment("one", map[string]any{"labels": map[string]any{"app": "web"}})
	deployment("two", map[string]any{"labels": map[string]any{"app.kubernetes.io/name": "web"}})
	deployment("long", map[string]any{"annotations": map[string]any{"note": noise(100_000)}})
	deployments.Patch("one", map[string]any{"spec": map[string]any{"replicas": 3}})
	deployments.Delete("two")

	want := []string{"ADDED long", "ADDED one", "ADDED two", "DELETED two", "MODIFIED one"}
	search := func(query string) (found []string) {
		node.Do(http.MethodPost, "/kubernetes-*/_refresh", nil)
		var answer struct {
			Hits struct {
				Hits []struct {
					Source struct {
						Type, Cluster, Name string
						Object              struct{ Kind string }
					} `json:"_source"`
				}
			}
		}
		if err := json.Unmarshal(node.Do(http.MethodGet, "/kubernetes-*/_search?size=100&q="+query, nil), &answer); err != nil {
			t.Fatal(err)
		}
		for _, hit := range answer.Hits.Hits {
			if hit.Source.Cluster != clusterName || hit.Source.Object.Kind != "Deployment" {
				t.Errorf("got the document %+v", hit.Source)
			}
			found = append(found, hit.Source.Type+" "+hit.Source.Name)
		}
		slices.Sort(found)
		return found
	}
	eventually(t, 3*wide, "a document of each change", func() error {
		if got := search("namespace:" + namespace); !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	if got, want := search(`labels.app:web`), []string{"ADDED one", "MODIFIED one"}; !slices.Equal(got, want) {
		t.Errorf("got %q with the label, want %q", got, want)
	}
	e.WaitSettled(wide)
	if dead := e.Metrics().sum("kubeferry_records_dead_total"); dead != 0 {
		t.Errorf("%v are dead letters", dead)
	}
}

// readRecipe returns a file of examples/recipes.
func readRecipe(t *testing.T, name string) string {
	t.Helper()
	root, err := programs.Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "examples", "recipes", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
