package explain

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// sourceAnswer reports whether a source takes an object.
type sourceAnswer struct {
	Source string `json:"source"`
	Takes  bool   `json:"takes"`
	// Why holds what was compared.
	Why string `json:"why"`
}

// selects works out what the API server would: whether the watches of a source have an object of one of its resources.
func selects(s *config.Source, d *delta.Delta) (sourceAnswer, error) {
	answer := sourceAnswer{Source: s.Name}
	content, err := d.Object.Unstructured()
	if err != nil {
		return answer, err
	}
	byLabel, err := labels.Parse(s.LabelSelector)
	if err != nil {
		return answer, fmt.Errorf("source %q: %w", s.Name, err)
	}
	byField, err := fields.ParseSelector(s.FieldSelector)
	if err != nil {
		return answer, fmt.Errorf("source %q: %w", s.Name, err)
	}
	// Values of fields are not shown: the object may be a Secret.
	fieldValues := fields.Set{}
	for _, requirement := range byField.Requirements() {
		fieldValues[requirement.Field] = textAt(content.Object, requirement.Field)
	}
	namespace, objectLabels := d.Object.Namespace(), labels.Set(content.GetLabels())
	switch {
	case !s.Namespaces.All() && namespace == "":
		answer.Why = "it has no namespace, and the source has `namespaces`"
	case !s.Namespaces.Match(namespace):
		answer.Why = fmt.Sprintf("namespace %q is left out", namespace)
	case !byLabel.Matches(objectLabels):
		answer.Why = fmt.Sprintf("labelSelector %s does not match the labels %q", s.LabelSelector, objectLabels)
	case !byField.Matches(fieldValues):
		answer.Why = fmt.Sprintf("fieldSelector %s does not match", s.FieldSelector)
	default:
		answer.Takes, answer.Why = true, delta.ResourceName(d.Resource)
		if !s.Namespaces.All() {
			answer.Why += ", namespace " + namespace
		}
		if s.Namespaces.Selector != "" {
			answer.Why += fmt.Sprintf(" if that has the labels %s, which only the cluster knows", s.Namespaces.Selector)
		}
		if s.LabelSelector != "" {
			answer.Why += ", labelSelector " + s.LabelSelector
		}
		if s.FieldSelector != "" {
			answer.Why += ", fieldSelector " + s.FieldSelector
		}
	}
	return answer, nil
}

// textAt returns the text of a field: empty if it is absent, as for the API server.
func textAt(object map[string]any, field string) string {
	value, _, err := unstructured.NestedFieldNoCopy(object, strings.Split(field, ".")...)
	if err != nil || value == nil {
		return ""
	}
	return fmt.Sprint(value)
}
