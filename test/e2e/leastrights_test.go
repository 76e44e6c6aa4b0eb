package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
)

// involved are the resources whose metadata is read for `enrich` by default.
var involved = []string{
	"cronjobs", "daemonsets", "deployments", "horizontalpodautoscalers", "jobs", "nodes", "persistentvolumeclaims", "poddisruptionbudgets",
	"pods", "replicasets", "services", "statefulsets",
}

// TestExtendedLeastRights runs kubeferry with the rights that `kubeferry rbac` prints for a configuration, and no other: it misses
// none. Then it takes one rule away at a time: each is needed.
func TestExtendedLeastRights(t *testing.T) {
	t.Parallel()
	one, two := newNamespace(t, "least"), newNamespace(t, "least")
	absent := unique("gadgets") // no CRD defines it
	for name, test := range map[string]struct {
		config string
		needed []string // resources, once for each rule; those in one item are taken away together
		unseen []string // resources that are granted and not used yet
	}{
		"the whole cluster": {
			"sources: [{name: s, resources: [v1/limitranges, apps/v1/daemonsets]}]", // few, in a cluster that other tests fill
			[]string{"limitranges", "daemonsets"},
			nil,
		},
		"two namespaces": {
			fmt.Sprintf("sources: [{name: s, resources: [v1/secrets], namespaces: {include: [%s, %s]}}]", one, two),
			[]string{"secrets", "secrets"},
			nil,
		},
		"one object": {
			fmt.Sprintf("sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, fieldSelector: metadata.name=one}]", one),
			[]string{"configmaps"},
			nil,
		},
		"a resource that is not served, and a state directory": {
			fmt.Sprintf("stateDir: %q\nsources: [{name: s, resources: [kubeferry.test/v1/%s], namespaces: {include: [%s]}}]", t.TempDir(), absent, one),
			[]string{"customresourcedefinitions", "namespaces"},
			[]string{absent},
		},
		"namespaces by labels, and all resources of a group": {
			fmt.Sprintf("sources: [{name: s, resources: ['policy/*'], namespaces: {selector: kubernetes.io/metadata.name=%s}}]", one),
			[]string{"namespaces"},
			[]string{"*"}, // without it the watches of single resources fail
		},
		"enrich": {
			fmt.Sprintf("sources: [{name: s, resources: [v1/events], namespaces: {include: [%s, default]}}]", one),
			[]string{"events", "events", strings.Join(involved, " ")},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			enrich, enriched := "", 0
			if name == "enrich" {
				enrich, enriched = ", enrich: involvedObject", len(involved)
			}
			config := test.config + fmt.Sprintf("\npipelines: [{name: p, sink: out%s}]\nsinks: [{name: out, stdout: {}}]\n", enrich)
			roles := printedRights(t, config)
			var found []string
			for _, right := range roles {
				found = append(found, right.resource)
			}
			want := append(strings.Fields(strings.Join(test.needed, " ")), test.unseen...)
			slices.Sort(want)
			if slices.Sort(found); !slices.Equal(found, want) {
				t.Errorf("got rules for %v, want %v", found, want)
			}

			e := startExporter(t, grant(t, roles), config)
			eventually(t, wide, "nothing is missing", func() error { return missingRights(e, enriched) })
			e.Stop()
			taken := 0 // of two rules for the same resource, first one and then the other
			for n, needed := range test.needed {
				if taken++; n == 0 || test.needed[n-1] != needed {
					taken = 0
				}
				resources := strings.Fields(needed)
				e := startExporter(t, grant(t, less(roles, resources, taken)), config)
				eventually(t, wide, "a missing right is reported: "+needed, func() error {
					err := missingRights(e, enriched)
					for _, resource := range resources {
						if err == nil || !strings.Contains(err.Error(), resource) {
							return fmt.Errorf("%s: got %w", resource, err)
						}
					}
					return nil
				})
				e.Stop()
			}
		})
	}
}

// missingRights returns what a kubeferry reports to be missing; nil once every watch is open, or waits for its resource to be
// served, also those of so many resources that Events are about.
func missingRights(e *exporter, enriched int) error {
	var errs []error
	status := e.Status()
	for _, w := range append(status.Watches, status.Enrichment...) {
		if !w.Ready || strings.Contains(w.Error, "forbidden") || strings.Contains(w.Error, "not known") {
			errs = append(errs, fmt.Errorf("%s in %s: %s %s", w.Resource, w.Namespace, w.State, w.Error))
		}
	}
	for _, line := range e.Logged("cannot tell whether the state directory") {
		errs = append(errs, fmt.Errorf("%v %v", line["err"], line["rule"]))
	}
	if found := len(status.Enrichment); found != enriched {
		errs = append(errs, fmt.Errorf("%d resources that Events are about, want %d", found, enriched))
	}
	return errors.Join(errs...)
}

// right is what a rule grants on one resource.
type right struct {
	namespace, resource string
	rule                map[string]any
}

// printedRights returns the rights that `kubeferry rbac` prints for a configuration.
func printedRights(t *testing.T, config string) (rights []right) {
	t.Helper()
	file := writeConfig(t, t.TempDir(), config)
	out, err := exec.CommandContext(t.Context(), raceBinary(t), "rbac", "--config", file).Output()
	if err != nil {
		t.Fatalf("kubeferry rbac: %v", err)
	}
	documents := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(out), 4096)
	for {
		var role struct {
			Metadata struct{ Namespace string }
			Rules    []map[string]any
		}
		if err := documents.Decode(&role); errors.Is(err, io.EOF) {
			return rights
		} else if err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			for _, resource := range rule["resources"].([]any) {
				one := maps.Clone(rule)
				one["resources"] = []any{resource}
				rights = append(rights, right{role.Metadata.Namespace, resource.(string), one})
			}
		}
	}
}

// less returns rights without those to some resources: the nth for each.
func less(rights []right, resources []string, n int) (rest []right) {
	seen := map[string]int{}
	for _, r := range rights {
		if !slices.Contains(resources, r.resource) || seen[r.resource] != n {
			rest = append(rest, r)
		}
		seen[r.resource]++
	}
	return rest
}

// grant gives rights to a new ServiceAccount and returns its kubeconfig, once the API server acts on them.
func grant(t *testing.T, rights []right) (kubeconfig string) {
	t.Helper()
	config, name := plane(t).Config(), unique("least")
	account, err := plane(t).ServiceAccountConfig(t.Context(), "default", name)
	if err != nil {
		t.Fatal(err)
	}
	of := map[string][]any{}
	for _, r := range rights {
		of[r.namespace] = append(of[r.namespace], r.rule)
	}
	for namespace, rules := range of {
		kind, resources := "Role", "roles"
		if namespace == "" {
			kind, resources = "ClusterRole", "clusterroles"
		}
		group := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
		objectsIn(t, config, group.WithResource(resources), namespace).Create(name, map[string]any{"rules": rules})
		bindings := strings.TrimSuffix(resources, "s") + "bindings"
		objectsIn(t, config, group.WithResource(bindings), namespace).Create(name, map[string]any{
			"roleRef":  map[string]any{"apiGroup": group.Group, "kind": kind, "name": name},
			"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "default", "name": name}},
		})
	}
	client, err := kubernetes.NewForConfig(account)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, wide, "the API server acts on the rights", func() error {
		for _, r := range rights {
			review := &authorizationv1.SelfSubjectAccessReview{}
			resource, subresource, _ := strings.Cut(r.resource, "/")
			review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
				Namespace: r.namespace, Resource: resource, Subresource: subresource,
				Group: r.rule["apiGroups"].([]any)[0].(string), Verb: r.rule["verbs"].([]any)[0].(string),
			}
			if names, ok := r.rule["resourceNames"].([]any); ok {
				review.Spec.ResourceAttributes.Name = names[0].(string)
			}
			answer, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
			if err != nil || !answer.Status.Allowed {
				return fmt.Errorf("%s: %+v, %w", r.resource, answer.Status, err)
			}
		}
		return nil
	})
	return writeKubeconfig(t, account)
}
