package config

import (
	"path"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubeferry/kubeferry/internal/delta"
)

func (v *validator) sources() {
	v.sourceNames = v.names("sources", len(v.config.Sources))
	for i := range v.config.Sources {
		v.source(&v.config.Sources[i], index("sources", i))
	}
}

func (v *validator) source(s *Source, at string) {
	if s.Check != 0 && s.Check < time.Minute {
		v.fault(at+".check", "must be at least a minute, or 0 for never")
	}
	for i, resource := range s.Resources {
		if first := slices.Index(s.Resources, resource); first < i && resource.Resource != "" {
			v.fault(index(at+".resources", i), "%s is in this list already", v.shown(index(at+".resources", i)))
		}
		if resource.Version == "" && resource.Resource != "" && !delta.IsWildcard(resource) {
			v.warn(index(at+".resources", i), "the API server decides at each start what %s stands for, and in which version; a name such as apps/v1/deployments stays the same", v.shown(index(at+".resources", i)))
		}
	}
	v.wildcards(s, at)
	v.namespaces(s.Namespaces.Namespaces, at+".namespaces")
	if selector := at + ".namespaces.selector"; v.has(selector) {
		_, err := labels.Parse(s.Namespaces.Selector)
		switch {
		case s.Namespaces.Selector == "":
			v.fault(selector, "must not be empty")
		case err != nil:
			v.fault(selector, "not a label selector such as team=shop,stage!=test%s", v.detail(selector, err))
		}
	}
	if _, err := labels.Parse(s.LabelSelector); err != nil {
		v.fault(at+".labelSelector", "not a label selector such as app=web,tier!=cache%s", v.detail(at+".labelSelector", err))
	}
	if _, err := fields.ParseSelector(s.FieldSelector); err != nil {
		v.fault(at+".fieldSelector", "not a field selector such as type=Warning%s", v.detail(at+".fieldSelector", err))
	}
}

// wildcards checks that no two wildcards of a source have the same group, and that each exclusion leaves something out.
func (v *validator) wildcards(s *Source, at string) {
	for i, resource := range s.Resources {
		first := slices.IndexFunc(s.Resources, func(r schema.GroupVersionResource) bool { return delta.IsWildcard(r) && r.Group == resource.Group })
		if delta.IsWildcard(resource) && first < i && s.Resources[first] != resource {
			v.fault(index(at+".resources", i), "takes the same objects as %s: leave one out", v.shown(index(at+".resources", first)))
		}
	}
	for i, excluded := range s.Exclude {
		place := index(at+".exclude", i)
		all := func(r schema.GroupVersionResource) bool { return delta.IsWildcard(r) && r.Group == excluded.Group }
		switch {
		case excluded.Resource == "": // it could not be read
		case delta.IsWildcard(excluded.WithVersion("")):
			v.fault(place, "leaves a whole group out: remove it from resources, or name one resource, as apps/v1/replicasets")
		case slices.ContainsFunc(s.Resources, func(r schema.GroupVersionResource) bool { return r.GroupResource() == excluded }):
			v.fault(place, "%s is in resources: leave it out there", v.shown(place))
		case !slices.ContainsFunc(s.Resources, all) && excluded.Group == "":
			v.fault(place, "leaves nothing out: without a group, as in replicasets.apps, it is of the core group, and resources has no v1/*")
		case !slices.ContainsFunc(s.Resources, all):
			v.fault(place, "leaves nothing out: resources has no wildcard for it, as %s/*", excluded.Group)
		}
	}
}

func (v *validator) namespaces(n delta.Namespaces, at string) {
	for _, list := range []struct {
		path  string
		globs []string
	}{{at + ".include", n.Include}, {at + ".exclude", n.Exclude}} {
		for i, glob := range list.globs {
			v.glob(glob, index(list.path, i))
		}
	}
	if i := slices.Index(n.Exclude, "*"); i >= 0 {
		v.fault(index(at+".exclude", i), "excludes every namespace")
		return
	}
	for i, include := range n.Include {
		j := slices.IndexFunc(n.Exclude, func(exclude string) bool {
			matched, _ := path.Match(exclude, include)
			return exclude == include || matched && !delta.IsGlob(include)
		})
		if j >= 0 {
			v.fault(index(at+".include", i), "%s is excluded again by %s, so it never selects anything",
				v.shown(index(at+".include", i)), v.shown(index(at+".exclude", j)))
		}
	}
}

func (v *validator) glob(glob, at string) {
	if delta.IsGlob(glob) {
		if _, err := path.Match(glob, ""); err != nil {
			v.fault(at, "%s is not a glob: * and ? stand for characters, [a-z] for one of a set", v.shown(at))
		}
		return
	}
	if len(validation.IsDNS1123Label(glob)) > 0 {
		v.fault(at, "%s cannot be the name of a namespace: those are lower-case letters, digits and -", v.shown(at))
	}
}
