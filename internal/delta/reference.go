package delta

import "k8s.io/apimachinery/pkg/types"

// Reference names an object by its kind, as an Event names the object that it is about. Any part may be empty or wrong,
// because the client that reports the Event writes it, and the API server checks little of it.
type Reference struct {
	// APIVersion is the apiVersion, such as "v1" or "apps/v1".
	APIVersion string
	Kind       string
	Namespace  string
	Name       string
	UID        types.UID
}
