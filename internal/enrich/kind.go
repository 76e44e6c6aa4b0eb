package enrich

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// idleFor is how long nobody must have asked about a kind before another one may take its place. Otherwise, with more
// kinds than there is room for, none would be watched for long.
const idleFor = 10 * time.Minute

// kind is one kind that Events were about, in whatever version. The cache's lock guards it.
type kind struct {
	schema.GroupVersionKind // in the version that was seen first
	asked                   time.Time
	// found says that the API server has the kind, clusterScoped that its objects have no namespace.
	found, clusterScoped bool
	objects              map[place]*entry
	// round counts the lists: what the last one did not hold is gone.
	round int
	// dismissed is closed when the kind had to make room.
	dismissed chan struct{}
}

// kindOf reads a reference's kind. It refuses what no API server can have, so that nothing else gets into the path of a
// request, a message, or the table of kinds.
func kindOf(ref delta.Reference) (schema.GroupVersionKind, bool) {
	group, version, ok := strings.Cut(ref.APIVersion, "/")
	if !ok {
		group, version = "", ref.APIVersion
	}
	if version == "" { // the kubelet's references to Nodes have none
		version = "v1"
	}
	if ref.Name == "" || ref.Kind == "" ||
		len(validation.IsDNS1035Label(strings.ToLower(ref.Kind))) > 0 ||
		len(validation.IsDNS1035Label(version)) > 0 ||
		group != "" && len(validation.IsDNS1123Subdomain(group)) > 0 {
		return schema.GroupVersionKind{}, false
	}
	return schema.GroupVersionKind{Group: group, Version: version, Kind: ref.Kind}, true
}

// admit takes a new kind up, if there is room for it or one of the others can go.
func (c *Cache) admit(gvk schema.GroupVersionKind) {
	if len(c.kinds) >= c.options.MaxKinds && !c.dismissOne() {
		if !c.full {
			c.full = true
			c.logger.Warn("too many kinds of objects have Events: the objects of further ones are not looked up",
				"kind", gvk.Kind, "group", gvk.Group, "maxKinds", c.options.MaxKinds)
		}
		return
	}
	k := &kind{GroupVersionKind: gvk, asked: c.now(), objects: map[place]*entry{}, dismissed: make(chan struct{})}
	c.kinds[gvk.GroupKind()] = k
	c.fresh = append(c.fresh, k)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// dismissOne forgets the kind that was not asked for the longest, of those that do not exist or are idle.
func (c *Cache) dismissOne() bool {
	var last *kind
	for _, k := range c.kinds {
		if k.found && c.now().Sub(k.asked) < idleFor {
			continue
		}
		if last == nil || !k.found && last.found || k.found == last.found && k.asked.Before(last.asked) {
			last = k
		}
	}
	if last == nil {
		return false
	}
	c.store.clear(last)
	delete(c.kinds, last.GroupKind())
	close(last.dismissed)
	return true
}
