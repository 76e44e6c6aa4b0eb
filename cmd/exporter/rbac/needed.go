// Package rbac makes the Roles and ClusterRoles of a configuration: the rights that a run of it needs, and no other.
package rbac

import (
	"cmp"
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source"
)

// Rule grants verbs on a resource: in a namespace, or in the whole cluster if that is empty; on one object if Name is set, else
// on all.
type Rule struct {
	Namespace, Group, Resource, Name string
	Verbs                            []string
}

// Enrichment returns the rules by which the metadata of the objects that Events are about is read; none without a pipeline that enriches.
func Enrichment(loaded *config.Config) (rules []Rule) {
	if !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Enrich == config.EnrichInvolvedObject }) {
		return nil
	}
	for _, r := range loaded.Enrichment.Resources {
		rules = append(append(rules, Rule{"", r.Group, r.Resource, "", []string{"list", "watch"}}), definition(r)...)
	}
	return rules
}

// definition returns the right to read CustomResourceDefinitions. A watch checks there whether a resource that is not served any more was
// deleted. The built-in resources of Kubernetes need no such right.
func definition(r schema.GroupVersionResource) []Rule {
	if source.BuiltIn(r.Group) {
		return nil
	}
	name := r.GroupResource().String()
	if delta.IsWildcard(r) {
		name = ""
	}
	return []Rule{{"", "apiextensions.k8s.io", "customresourcedefinitions", name, []string{"list"}}}
}

// Replicas returns the rules by which replicas elect a leader, and recognize each other by their ServiceAccount; none without
// leaderElection. A creation has no name that a rule could restrict.
func Replicas(loaded *config.Config, grant Grant) []Rule {
	e := loaded.LeaderElection
	if e == nil {
		return nil
	}
	namespace := cmp.Or(e.LeaseNamespace, grant.Namespace)
	return []Rule{
		{namespace, "coordination.k8s.io", "leases", e.LeaseName, []string{"get", "update"}},
		{namespace, "coordination.k8s.io", "leases", "", []string{"create"}},
		{grant.Namespace, "", "serviceaccounts/token", grant.ServiceAccount, []string{"create"}},
		{"", "authentication.k8s.io", "tokenreviews", "", []string{"create"}},
	}
}

// Needed returns the rules that a configuration needs beside some others, each once.
func Needed(loaded *config.Config, others ...Rule) []Rule {
	rules := others
	for _, c := range loaded.Sources {
		if len(loaded.Takers(c.Name)) == 0 {
			continue // it is not watched
		}
		options := resources.Options(&c)
		for _, access := range options.Access() {
			r := access.Resource
			rule := Rule{access.Namespace, r.Group, r.Resource, access.Name, []string{"list", "watch"}}
			rules = append(append(rules, rule), definition(r)...)
		}
	}
	if loaded.StateDir != "" { // its uid identifies the cluster
		rules = append(rules, Rule{"", "", "namespaces", "kube-system", []string{"get"}})
	}
	return reduce(rules)
}

// Missing returns the first verb of the rule that the API server does not grant, or an empty string.
func (r Rule) Missing(ctx context.Context, client *source.Client) (string, error) {
	for _, verb := range r.Verbs {
		granted, err := client.Granted(ctx, map[string]any{
			"namespace": r.Namespace, "group": r.Group, "resource": r.Resource, "name": r.Name, "verb": verb,
		})
		if err != nil || !granted {
			return verb, err
		}
	}
	return "", nil
}

// reduce sorts rules, and removes those that another one includes.
func reduce(rules []Rule) []Rule {
	slices.SortFunc(rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource),
			cmp.Compare(a.Name, b.Name), slices.Compare(a.Verbs, b.Verbs))
	})
	var kept []Rule
	for _, rule := range rules { // what includes a rule is before it: an empty namespace and an empty name sort first
		if !slices.ContainsFunc(kept, func(other Rule) bool { return other.includes(rule) }) {
			kept = append(kept, rule)
		}
	}
	return kept
}

func (r Rule) includes(other Rule) bool {
	return r.Group == other.Group && r.Resource == other.Resource && slices.Equal(r.Verbs, other.Verbs) &&
		(r.Namespace == "" || r.Namespace == other.Namespace) && (r.Name == "" || r.Name == other.Name)
}
