package oracle

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The types of records, as they are written in ids.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Gap      = "GAP"
	Mark     = "SNAPSHOT"
)

// Record is what a pipeline delivered, reduced to what can be judged without looking into the object.
type Record struct {
	ID              string // <cluster>/<uid>/<resource version>/<type>
	Type            string
	Resource        schema.GroupVersionResource
	Namespace, Name string
	UID             string
	ResourceVersion string
	Snapshot        bool
	Inferred        bool
	// Sequence is the place of a CloudEvent among those of its object; 0 in a format that has none.
	Sequence uint64
	// From and To are the resource versions that bound the missing history of a record of type GAP. To is empty where the resource is gone,
	// which an oracle cannot judge.
	From, To, Reason string
	// Of a mark: the sequence of the snapshot, with how many objects, whether anything follows from it, and what it lacks.
	Of       string
	Count    int
	Complete bool
	Except   []string
}

// id is the id that a change has by contract.
func id(cluster, uid, version, typ string) string {
	return cluster + "/" + uid + "/" + version + "/" + typ
}

// parseID takes an id apart from its end, because a cluster's name may contain slashes.
func parseID(id string) (uid, version, typ string, err error) {
	parts := strings.Split(id, "/")
	if len(parts) < 4 {
		return "", "", "", fmt.Errorf("id %q is not <cluster>/<uid>/<resource version>/<type>", id)
	}
	n := len(parts)
	return parts[n-3], parts[n-2], parts[n-1], nil
}

// parsePath splits the REST path of an object, or of a collection if name is empty.
func parsePath(path string, resource schema.GroupVersionResource) (namespace, name string, err error) {
	prefix := "/apis/" + resource.Group + "/" + resource.Version + "/"
	if resource.Group == "" {
		prefix = "/api/" + resource.Version + "/"
	}
	rest, ok := strings.CutPrefix(path, prefix)
	if !ok {
		return "", "", fmt.Errorf("subject %q is not below %s", path, prefix)
	}
	parts := strings.Split(rest, "/")
	if len(parts) > 2 && parts[0] == "namespaces" {
		namespace, parts = parts[1], parts[2:]
	}
	if parts[0] != resource.Resource || len(parts) > 2 {
		return "", "", fmt.Errorf("subject %q does not name one of %s", path, resource.Resource)
	}
	if len(parts) == 2 {
		name = parts[1]
	}
	return namespace, name, nil
}

// lost reports whether it is a gap of which the reason is that the run before was killed, or its state lost.
func (r Record) lost() bool { return r.Reason == "lost" }
