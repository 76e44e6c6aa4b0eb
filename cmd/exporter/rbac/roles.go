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

type manifest struct {
	APIVersion string       `yaml:"apiVersion"`
	Kind       string       `yaml:"kind"`
	Metadata   metadata     `yaml:"metadata"`
	Rules      []policyRule `yaml:"rules,omitempty"`
	RoleRef    *roleRef     `yaml:"roleRef,omitempty"`
	Subjects   []subject    `yaml:"subjects,omitempty"`
}

type metadata struct {
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace,omitempty"`
}

type policyRule struct {
	APIGroups     []string `yaml:"apiGroups,flow"`
	Resources     []string `yaml:"resources,flow"`
	ResourceNames []string `yaml:"resourceNames,flow,omitempty"`
	Verbs         []string `yaml:"verbs,flow"`
}

type roleRef struct {
	APIGroup string `yaml:"apiGroup"`
	Kind     string `yaml:"kind"`
	Name     string `yaml:"name"`
}

type subject struct {
	Kind      string `yaml:"kind"`
	Name      string `yaml:"name"`
	Namespace string `yaml:"namespace"`
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
		role := manifest{
			APIVersion: "rbac.authorization.k8s.io/v1", Kind: kind,
			Metadata: metadata{grant.Name, namespace}, Rules: policyRules(rules[:n]),
		}
		binding := manifest{
			APIVersion: "rbac.authorization.k8s.io/v1", Kind: kind + "Binding", Metadata: metadata{grant.Name, namespace},
			RoleRef:  &roleRef{"rbac.authorization.k8s.io", kind, grant.Name},
			Subjects: []subject{{"ServiceAccount", grant.ServiceAccount, grant.Namespace}},
		}
		for _, m := range []manifest{role, binding} {
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
