package explain

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file works out what the API server would: which watches of a source an object is in.

// sourceAnswer reports whether a source takes an object.
type sourceAnswer struct {
	Source string `json:"source"`
	Takes  bool   `json:"takes"`
	// Why holds what was compared.
	Why string `json:"why"`
	// hasResource is set if the resource at least is right.
	hasResource bool
}

// selects reports whether an object is in a source's watches. Secrets must be redacted before: values are quoted.
func selects(s *config.Source, resource schema.GroupVersionResource, object *delta.Object) (sourceAnswer, error) {
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
		reason, ok, err := check(s, content)
		if err != nil {
			return answer, fmt.Errorf("source %q: %w", s.Name, err)
		}
		if !ok {
			answer.Why = reason
			return answer, nil
		}
		if reason != "" {
			why = append(why, reason)
		}
	}
	answer.Takes, answer.Why = true, strings.Join(why, ", ")
	return answer, nil
}

func inNamespaces(s *config.Source, object *unstructured.Unstructured) (reason string, ok bool, _ error) {
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

func hasLabels(s *config.Source, object *unstructured.Unstructured) (reason string, ok bool, _ error) {
	if s.LabelSelector == "" {
		return "", true, nil
	}
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
	return "labelSelector " + s.LabelSelector, true, nil
}

func hasFields(s *config.Source, object *unstructured.Unstructured) (reason string, ok bool, _ error) {
	if s.FieldSelector == "" {
		return "", true, nil
	}
	selector, err := fields.ParseSelector(s.FieldSelector)
	if err != nil {
		return "", false, err
	}
	for _, requirement := range selector.Requirements() {
		value := fieldOf(object.Object, requirement.Field)
		if unequal := requirement.Operator == selection.NotEquals; unequal == (value == requirement.Value) {
			return fmt.Sprintf("fieldSelector %[1]s%[2]s%[3]s: %[1]s is %[4]q", requirement.Field, requirement.Operator, requirement.Value, value), false, nil
		}
	}
	return "fieldSelector " + s.FieldSelector, true, nil
}

// fieldOf returns the value of a field as the API server selects by it: what is in the object's place of that name, as text.
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
