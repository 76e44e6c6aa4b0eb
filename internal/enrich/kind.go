package enrich

import (
	"context"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// idleFor is how long a kind must not have been looked up before another may replace it. Without it, more kinds than
// MaxKinds would replace each other all the time, and none would be read to its end.
const idleFor = 10 * time.Minute

// kind is one kind that Events were about, in whatever version. The cache's mutex guards it.
type kind struct {
	schema.GroupKind
	lastLookup           time.Time
	found, clusterScoped bool // as discovery says
	objects              map[place]*entry
	lists                int                // an object that the latest list did not hold was deleted
	stop                 context.CancelFunc // ends the watch; nil before it has begun
}

// kindOf returns a reference's kind. It refuses what no API server can have, so that nothing else becomes part of a
// request's path, a log message, or the table of kinds.
func kindOf(ref delta.Reference) (schema.GroupKind, bool) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || ref.Name == "" ||
		len(validation.IsDNS1035Label(strings.ToLower(ref.Kind))) > 0 ||
		gv.Version != "" && len(validation.IsDNS1035Label(gv.Version)) > 0 || // the kubelet's references to Nodes have none
		gv.Group != "" && len(validation.IsDNS1123Subdomain(gv.Group)) > 0 {
		return schema.GroupKind{}, false
	}
	return schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, true
}

// addKind begins with a new kind, if there are fewer than MaxKinds or one of them can be removed.
func (c *Cache) addKind(groupKind schema.GroupKind) {
	if len(c.kinds) >= c.options.MaxKinds && !c.removeKind() {
		if !c.full {
			c.full = true
			c.logger.Warn("too many kinds of objects have Events: the objects of further ones are not looked up",
				"kind", groupKind.Kind, "group", groupKind.Group, "maxKinds", c.options.MaxKinds)
		}
		return
	}
	k := &kind{GroupKind: groupKind, lastLookup: c.now(), objects: map[place]*entry{}}
	c.kinds[groupKind] = k
	c.added = append(c.added, k)
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// removeKind removes the kind that was not looked up for the longest, of those that do not exist or are idle.
func (c *Cache) removeKind() bool {
	var last *kind
	for _, k := range c.kinds {
		if k.found && c.now().Sub(k.lastLookup) < idleFor {
			continue
		}
		if last == nil || !k.found && last.found || k.found == last.found && k.lastLookup.Before(last.lastLookup) {
			last = k
		}
	}
	if last == nil {
		return false
	}
	c.store.clear(last)
	delete(c.kinds, last.GroupKind)
	if last.stop != nil {
		last.stop()
	}
	c.added = slices.DeleteFunc(c.added, func(k *kind) bool { return k == last })
	return true
}
