package delta

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// dotted is the form "deployments.v1.apps", or "pods.v1" for the core group.
var dotted = regexp.MustCompile(`^([^./]+)\.(v\d[^./]*)(?:\.([^/]*))?$`)

// ParseResource reads a resource as it is written in the configuration: "apps/v1/deployments" or "deployments.v1.apps", or
// "v1/pods" or "pods.v1" for the core group.
func ParseResource(text string) (schema.GroupVersionResource, error) {
	var gvr schema.GroupVersionResource
	parts := strings.Split(text, "/")
	if found := dotted.FindStringSubmatch(text); found != nil {
		parts = slices.DeleteFunc([]string{found[3], found[2], found[1]}, func(part string) bool { return part == "" })
	}
	switch len(parts) {
	case 2:
		gvr.Version, gvr.Resource = parts[0], parts[1]
	case 3:
		gvr.Group, gvr.Version, gvr.Resource = parts[0], parts[1], parts[2]
		if gvr.Group == "" {
			return gvr, fmt.Errorf("resource %q has an empty group: write %s/%s for the core group", text, gvr.Version, gvr.Resource)
		}
	default:
		return gvr, fmt.Errorf("resource %q is not <group>/<version>/<resource> (or <version>/<resource> for the core group), as in apps/v1/deployments", text)
	}
	if gvr.Version == "" || gvr.Resource == "" {
		return gvr, fmt.Errorf("resource %q has an empty part", text)
	}
	if lower := strings.ToLower(gvr.Resource); lower != gvr.Resource {
		return gvr, fmt.Errorf("resource %q names a kind: use the lower-case plural, as `kubectl api-resources` lists it", text)
	}
	if strings.ContainsAny(text, " *?") {
		return gvr, fmt.Errorf("resource %q: each resource is named in full, without wildcards", text)
	}
	return gvr, nil
}

// ResourceName writes a resource as [ParseResource] reads it. One without a version is a name that was not looked up yet.
func ResourceName(gvr schema.GroupVersionResource) string {
	if gvr.Version == "" {
		return gvr.Resource
	}
	if gvr.Group == "" {
		return gvr.Version + "/" + gvr.Resource
	}
	return gvr.Group + "/" + gvr.Version + "/" + gvr.Resource
}

// Namespaces selects namespaces by anchored globs in the syntax of [path.Match]. A name is selected if Include is
// empty or one of its globs matches, and no glob of Exclude does.
type Namespaces struct {
	Include []string `yaml:"include" doc:"names of namespaces to take, where * stands for any characters. The default is all"`
	Exclude []string `yaml:"exclude" doc:"names of namespaces to leave out, even if include has them"`
}

// All reports whether every namespace is selected.
func (n Namespaces) All() bool { return len(n.Include) == 0 && len(n.Exclude) == 0 }

// Match reports whether the namespace is selected. The globs must be valid.
func (n Namespaces) Match(namespace string) bool {
	matches := func(glob string) bool {
		ok, _ := path.Match(glob, namespace)
		return ok
	}
	return (len(n.Include) == 0 || slices.ContainsFunc(n.Include, matches)) && !slices.ContainsFunc(n.Exclude, matches)
}

// IsGlob reports whether the pattern is more than a plain name.
func IsGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

// Snapshot is what becomes of the objects that a watch finds when it begins.
type Snapshot string

// The modes of a snapshot. Without a state directory every start is a first one, so that initial and always are
// the same.
const (
	SnapshotInitial Snapshot = "initial" // each is sent as ADDED, once to each pipeline
	SnapshotAlways  Snapshot = "always"  // at every start, after catching up
	SnapshotNever   Snapshot = "never"   // they are recorded only
)
