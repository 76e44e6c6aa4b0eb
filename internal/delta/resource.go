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

// ParseResource reads a resource as the configuration has it: "apps/v1/deployments" or "deployments.v1.apps". In the core group it is
// "v1/pods" or "pods.v1". The error quotes the text, and says what to write.
func ParseResource(text string) (schema.GroupVersionResource, error) {
	var gvr schema.GroupVersionResource
	if strings.Contains(text, "*") {
		return gvr, fmt.Errorf("resource %q: a * stands for all resources of one group, as in apps/*, *.example.com or v1/*", text)
	}
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
	if strings.ContainsAny(text, " ?") {
		return gvr, fmt.Errorf("resource %q has a character that no name has", text)
	}
	return gvr, nil
}

// wildcard is the resource of a [Wildcard].
const wildcard = "*"

// inGroup and ofGroup are the forms "*.example.com" and "example.com/*", and coreVersion is a version of the core group.
var (
	inGroup     = regexp.MustCompile(`^\*\.([a-z0-9][a-z0-9.-]*)$`)
	ofGroup     = regexp.MustCompile(`^([a-z0-9][a-z0-9.-]*)/(?:(v\d[a-z0-9]*)/)?\*$`)
	coreVersion = regexp.MustCompile(`^v\d[a-z0-9]*$`)
)

// ParseWildcard reads a wildcard, which stands for all resources of a group that can be watched: "apps/*" or "*.apps", or "v1/*" for the core
// group. "apps/v1/*" stands for the resources of one version. The result has the resource "*". Its version is empty if all versions are meant.
// ok is false if the text is not a wildcard.
func ParseWildcard(text string) (gvr schema.GroupVersionResource, ok bool) {
	if found := inGroup.FindStringSubmatch(text); found != nil {
		return schema.GroupVersionResource{Group: found[1], Resource: wildcard}, true
	}
	found := ofGroup.FindStringSubmatch(text)
	switch {
	case found == nil:
		return gvr, false
	case found[2] == "" && coreVersion.MatchString(found[1]):
		return schema.GroupVersionResource{Version: found[1], Resource: wildcard}, true
	default:
		return schema.GroupVersionResource{Group: found[1], Version: found[2], Resource: wildcard}, true
	}
}

// IsWildcard reports whether a resource is what [ParseWildcard] returns.
func IsWildcard(gvr schema.GroupVersionResource) bool { return gvr.Resource == wildcard }

// Covers reports whether other is the resource gvr, or a wildcard that stands for it.
func Covers(other, gvr schema.GroupVersionResource) bool {
	return other == gvr || IsWildcard(other) && other.Group == gvr.Group && (other.Version == "" || other.Version == gvr.Version)
}

// ResourceName writes a resource in the form that [ParseResource] or [ParseWildcard] reads. A resource without a version is a short name that
// was not looked up yet. ResourceName returns the name.
func ResourceName(gvr schema.GroupVersionResource) string {
	if gvr.Version == "" && IsWildcard(gvr) {
		return gvr.Group + "/" + gvr.Resource
	}
	if gvr.Version == "" {
		return gvr.Resource
	}
	if gvr.Group == "" {
		return gvr.Version + "/" + gvr.Resource
	}
	return gvr.Group + "/" + gvr.Version + "/" + gvr.Resource
}

// Namespaces selects namespaces by their names. Include and Exclude have globs in the syntax of [path.Match], which match
// whole names. A name is selected if Include is empty or has a glob that matches, and Exclude has none that matches.
type Namespaces struct {
	Include []string `yaml:"include" doc:"names of namespaces to take, where * stands for any characters. The default is all"`
	Exclude []string `yaml:"exclude" doc:"names of namespaces to leave out, even if include has them"`
}

// All reports whether every namespace is selected.
func (n Namespaces) All() bool { return len(n.Include) == 0 && len(n.Exclude) == 0 }

// Match reports whether the namespace is selected. A glob that is not valid matches nothing.
func (n Namespaces) Match(namespace string) bool {
	matches := func(glob string) bool {
		ok, _ := path.Match(glob, namespace)
		return ok
	}
	return (len(n.Include) == 0 || slices.ContainsFunc(n.Include, matches)) && !slices.ContainsFunc(n.Exclude, matches)
}

// IsGlob reports whether a pattern has characters that are special in a glob.
func IsGlob(pattern string) bool { return strings.ContainsAny(pattern, `*?[\`) }

// Snapshot says when the objects that exist are sent.
type Snapshot string

// The modes of a snapshot. Without a state directory every start is a first one, so that initial and always are
// the same.
const (
	SnapshotInitial Snapshot = "initial" // once to each pipeline, as ADDED
	SnapshotAlways  Snapshot = "always"  // to each pipeline at every start, as ADDED, behind the changes since the last run
	SnapshotNever   Snapshot = "never"   // never: they are only recorded in the known set
)
