package explain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file works out what the API server would: which watches of a source an object is in.

// guessResource finds the resource of a kind: of the usual plurals one that a source has, else the likeliest.
func guessResource(kind schema.GroupVersionKind, configured []config.Source) schema.GroupVersionResource {
	guess, _ := meta.UnsafeGuessKindToResource(kind)
	singular := strings.ToLower(kind.Kind)
	for _, plural := range []string{guess.Resource, singular + "s", singular + "es", singular} {
		if resource := kind.GroupVersion().WithResource(plural); sourceWith(configured, resource) {
			return resource
		}
	}
	return guess
}

func sourceWith(configured []config.Source, resource schema.GroupVersionResource) bool {
	return slices.ContainsFunc(configured, func(s config.Source) bool { return slices.Contains(s.Resources, resource) })
}

// resourceHint says what to do about a resource that no source has; empty if one has it.
func resourceHint(resource schema.GroupVersionResource, kind string, configured []config.Source) string {
	if sourceWith(configured, resource) {
		return ""
	}
	var all []string
	for _, source := range configured {
		for _, other := range source.Resources {
			name := delta.ResourceName(other)
			switch {
			case other.GroupResource() == resource.GroupResource():
				return fmt.Sprintf("no source has %s, but source %q has %s: the API server would send the object in that version",
					delta.ResourceName(resource), source.Name, name)
			case other.GroupVersion() == resource.GroupVersion() && similar(other.Resource, strings.ToLower(kind)):
				return fmt.Sprintf("no source has %s, which is a guess from the kind; if it is %s, say --resource %s",
					delta.ResourceName(resource), name, name)
			}
			if !slices.Contains(all, name) {
				all = append(all, name)
			}
		}
	}
	return fmt.Sprintf("no source has %s; they have %s. If the kind has another plural, say --resource", delta.ResourceName(resource), strings.Join(all, ", "))
}

// similar reports whether a resource may well be the plural of a kind: they begin alike.
func similar(resource, kind string) bool {
	n := max(3, len(kind)-2)
	return len(resource) >= n && len(kind) >= n && resource[:n] == kind[:n]
}

// sourceAnswer says whether a source takes an object.
type sourceAnswer struct {
	Source string `json:"source"`
	Takes  bool   `json:"takes"`
	// Why holds what was compared.
	Why string `json:"why"`
	// hasResource says that the resource at least is right.
	hasResource bool
}

// askSource says whether an object is in a source's watches. Secrets must be redacted before: values are quoted.
func askSource(s *config.Source, resource schema.GroupVersionResource, object *delta.Object) (sourceAnswer, error) {
	answer := sourceAnswer{Source: s.Name, hasResource: slices.Contains(s.Resources, resource)}
	if !answer.hasResource {
		answer.Why = "does not have " + delta.ResourceName(resource)
		return answer, nil
	}
	content, err := object.Unstructured()
	if err != nil {
		return answer, err
	}
	why := []string{delta.ResourceName(resource)}
	for _, check := range []func(*config.Source, *unstructured.Unstructured) (string, bool, error){inNamespaces, hasLabels, hasFields} {
		said, ok, err := check(s, content)
		if err != nil {
			return answer, fmt.Errorf("source %q: %w", s.Name, err)
		}
		if !ok {
			answer.Why = said
			return answer, nil
		}
		if said != "" {
			why = append(why, said)
		}
	}
	answer.Takes, answer.Why = true, strings.Join(why, ", ")
	return answer, nil
}

func inNamespaces(s *config.Source, object *unstructured.Unstructured) (string, bool, error) {
	namespace := object.GetNamespace()
	switch {
	case s.Namespaces.All():
		return "", true, nil
	case namespace == "":
		return "the object is in no namespace, and the source is for some", false, nil
	case s.Namespaces.Match(namespace):
		return "namespace " + namespace, true, nil
	}
	which := "include " + strings.Join(s.Namespaces.Include, ", ")
	if len(s.Namespaces.Include) == 0 || (delta.Namespaces{Include: s.Namespaces.Include}).Match(namespace) {
		which = "exclude " + strings.Join(s.Namespaces.Exclude, ", ")
	}
	return fmt.Sprintf("namespace %s is left out (%s)", namespace, which), false, nil
}

func hasLabels(s *config.Source, object *unstructured.Unstructured) (string, bool, error) {
	selector, err := labels.Parse(s.LabelSelector)
	if err != nil {
		return "", false, err
	}
	set := labels.Set(object.GetLabels())
	requirements, _ := selector.Requirements()
	for _, requirement := range requirements {
		if requirement.Matches(set) {
			continue
		}
		has := "no label " + requirement.Key()
		if value, ok := set[requirement.Key()]; ok {
			has = requirement.Key() + "=" + value
		}
		return fmt.Sprintf("labelSelector %s: the object has %s", requirement.String(), has), false, nil
	}
	if s.LabelSelector == "" {
		return "", true, nil
	}
	return "labelSelector " + s.LabelSelector, true, nil
}

func hasFields(s *config.Source, object *unstructured.Unstructured) (string, bool, error) {
	selector, err := fields.ParseSelector(s.FieldSelector)
	if err != nil {
		return "", false, err
	}
	for _, requirement := range selector.Requirements() {
		value := fieldOf(object.Object, requirement.Field)
		one := fields.OneTermEqualSelector(requirement.Field, requirement.Value)
		if string(requirement.Operator) == "!=" {
			one = fields.OneTermNotEqualSelector(requirement.Field, requirement.Value)
		}
		if !one.Matches(fields.Set{requirement.Field: value}) {
			return fmt.Sprintf("fieldSelector %s: %s is %q", one, requirement.Field, value), false, nil
		}
	}
	if s.FieldSelector == "" {
		return "", true, nil
	}
	return "fieldSelector " + s.FieldSelector, true, nil
}

// fieldOf is the value of a field as the API server selects by it: what is in the object's place of that name, as text.
// The exceptions are those of its built-in kinds (pkg/registry/*/*/strategy.go of k8s.io/kubernetes).
func fieldOf(object map[string]any, field string) string {
	group, _, _ := strings.Cut(fmt.Sprint(object["apiVersion"]), "/")
	if object["kind"] == "Event" {
		switch {
		case field == "source":
			if component := textAt(object, "source.component"); component != "" {
				return component
			}
			return textAt(object, "reportingComponent") + textAt(object, "reportingController") + textAt(object, "deprecatedSource.component")
		case group == "events.k8s.io" && field == "reportingComponent":
			return textAt(object, "reportingController")
		case group == "events.k8s.io" && strings.HasPrefix(field, "involvedObject."):
			return textAt(object, "regarding."+strings.TrimPrefix(field, "involvedObject."))
		}
	}
	if object["kind"] == "Job" && field == "status.successful" {
		field = "status.succeeded"
	}
	value := textAt(object, field)
	if value == "" {
		switch field {
		case "spec.unschedulable", "spec.hostNetwork":
			return "false"
		case "status.replicas", "status.succeeded":
			return "0"
		}
	}
	return value
}

func textAt(object map[string]any, field string) string {
	value, ok, err := unstructured.NestedFieldNoCopy(object, strings.Split(field, ".")...)
	if !ok || err != nil || value == nil {
		return ""
	}
	return fmt.Sprint(value)
}
