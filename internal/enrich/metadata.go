package enrich

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// lastApplied holds a copy of the whole object, of Secrets too.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// encode makes what is kept of an object, which belongs to the caller.
func encode(object *metav1.PartialObjectMetadata) json.RawMessage {
	delete(object.Annotations, lastApplied)
	raw, err := json.Marshal(struct {
		Labels          map[string]string       `json:"labels,omitempty"`
		Annotations     map[string]string       `json:"annotations,omitempty"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences,omitempty"`
	}{object.Labels, object.Annotations, object.OwnerReferences})
	if err != nil {
		panic(err) // texts and booleans
	}
	return raw
}
