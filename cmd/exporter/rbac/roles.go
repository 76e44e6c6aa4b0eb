package rbac

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// Grant is who gets the rules, and under which name.
type Grant struct {
	// Name of the Roles, of the ClusterRole, and of their bindings.
	Name string
	// ServiceAccount in Namespace.
	Namespace, ServiceAccount string
}

type policyRule struct {
	APIGroups     []string `yaml:"apiGroups,flow"`
	Resources     []string `yaml:"resources,flow"`
	ResourceNames []string `yaml:"resourceNames,flow,omitempty"`
	Verbs         []string `yaml:"verbs,flow"`
}

// Write writes rules, sorted as [Needed] returns them, as YAML for `kubectl apply`: a ClusterRole, or a Role for each
// namespace, and a binding of each.
func Write(out io.Writer, rules []Rule, grant Grant) error {
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	for len(rules) > 0 {
		namespace := rules[0].Namespace
		n := slices.IndexFunc(rules, func(r Rule) bool { return r.Namespace != namespace })
		if n < 0 {
			n = len(rules)
		}
		kind := "Role"
		if namespace == "" {
			kind = "ClusterRole"
		}
		metadata := map[string]string{"name": grant.Name}
		if namespace != "" {
			metadata["namespace"] = namespace
		}
		role := map[string]any{"kind": kind, "rules": policyRules(rules[:n])}
		binding := map[string]any{
			"kind":     kind + "Binding",
			"roleRef":  map[string]string{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": grant.Name},
			"subjects": []map[string]string{{"kind": "ServiceAccount", "name": grant.ServiceAccount, "namespace": grant.Namespace}},
		}
		for _, m := range []map[string]any{role, binding} {
			m["apiVersion"], m["metadata"] = "rbac.authorization.k8s.io/v1", metadata
			if err := encoder.Encode(m); err != nil {
				return err
			}
		}
		rules = rules[n:]
	}
	_, err := out.Write(text.Bytes())
	return err
}

// policyRules writes the resources of one group that have the same verbs and the same name, or none, into one rule.
func policyRules(rules []Rule) []policyRule {
	var merged []policyRule
	for _, r := range rules {
		next := r.policyRule()
		same := func(m policyRule) bool {
			return slices.Equal(m.APIGroups, next.APIGroups) && slices.Equal(m.Verbs, next.Verbs) &&
				slices.Equal(m.ResourceNames, next.ResourceNames)
		}
		if n := slices.IndexFunc(merged, same); n >= 0 {
			merged[n].Resources = append(merged[n].Resources, r.Resource)
		} else {
			merged = append(merged, next)
		}
	}
	return merged
}

func (r Rule) policyRule() policyRule {
	rule := policyRule{APIGroups: []string{r.Group}, Resources: []string{r.Resource}, Verbs: r.Verbs}
	if r.Name != "" {
		rule.ResourceNames = []string{r.Name}
	}
	return rule
}

// String returns the rule as it stands in a Role or ClusterRole, with where it belongs: what to grant, for a message.
func (r Rule) String() string {
	where := "ClusterRole"
	if r.Namespace != "" {
		where = "Role in namespace " + r.Namespace
	}
	name := ""
	if r.Name != "" {
		name = fmt.Sprintf(", resourceNames: [%q]", r.Name)
	}
	return fmt.Sprintf("%s: {apiGroups: [%q], resources: [%q]%s, verbs: [%s]}", where, r.Group, r.Resource, name, strings.Join(r.Verbs, ", "))
}
