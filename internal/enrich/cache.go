// Package enrich keeps the metadata of the objects that Events are about: labels, annotations and owners.
//
// Which kinds these are is not configured. The first Lookup of a kind starts a watch of its metadata, and returns
// nothing, as does every Lookup until the objects of the kind were read: an Event does not wait. Memory and the number of
// kinds are bounded. The object that was not looked up for the longest goes first, and returns with its next change.
package enrich

import (
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kubeferry/kubeferry/internal/delta"
)

const (
	// maxKinds bounds the kinds that are watched or looked up: an Event can name any kind.
	maxKinds = 100
	// maxMissing bounds the kinds of one namespace's Events that are looked for at once. Those of other namespaces do not wait for long
	// behind them.
	maxMissing = 20
	// idleFor is how long after its last Lookup a kind may be replaced. If it were short, kinds would keep replacing each other once there
	// are more than maxKinds.
	idleFor = 10 * time.Minute
	// deletedFor is how long a deleted object is kept, since Events about its end arrive after the end.
	deletedFor = 5 * time.Minute
	// warningsAtOnce is the burst of warnings about kinds that cannot be read; after it there is one a minute.
	warningsAtOnce = 10
)

// Resolver finds the resource of a kind by discovery, and whether its objects have namespaces.
type Resolver interface {
	ResourceOf(ctx context.Context, kind schema.GroupKind) (gvr schema.GroupVersionResource, namespaced bool, err error)
}

// Cache holds metadata. Lookup may be called from several goroutines, before Run and after it as well.
type Cache struct {
	resolver Resolver
	client   metadata.Interface
	logger   *slog.Logger
	added    chan *kind    // in kinds, and not watched yet
	pages    chan struct{} // that are being read
	warnings flowcontrol.RateLimiter

	// Tests set these before the first Lookup.
	maxKinds int
	backoff  wait.Backoff // between the attempts to find and to read a kind

	mu    sync.Mutex // guards what follows; not held during requests
	now   func() time.Time
	kinds map[schema.GroupKind]*kind
	full  bool // the warning about too many kinds was logged
	store store
}

// New makes a cache that takes about maxBytes of memory at most; it is empty until Run.
func New(resolver Resolver, client metadata.Interface, maxBytes int64, registry prometheus.Registerer, logger *slog.Logger) *Cache {
	c := &Cache{
		resolver: resolver, client: client, logger: logger, added: make(chan *kind, maxKinds), maxKinds: maxKinds,
		pages:    make(chan struct{}, maxPages),
		warnings: flowcontrol.NewTokenBucketRateLimiter(1./60, warningsAtOnce),
		backoff:  wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 7, Cap: time.Minute},
		now:      time.Now, kinds: map[schema.GroupKind]*kind{}, store: store{maxBytes: maxBytes, deletedFor: deletedFor},
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubeferry_enrichment_bytes", Help: "Memory that the metadata of the objects takes that Events are about. enrichment.maxBytes limits it.",
	}, func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(c.store.bytes)
	}))
	return c
}

// Lookup returns the labels, annotations and ownerReferences that an object has, or had before its deletion, as a JSON object. The caller
// must not modify it. It returns false if they are not in the cache: the kind is new or cannot be read, or the object of that name has
// another uid. It never waits for the API server.
//
// namespace is that of the Event. Whoever may write Events there must not read of other namespaces. So the object has to be in the same
// namespace, or it has none and the Event is in default, where Kubernetes writes such Events.
func (c *Cache) Lookup(namespace string, ref delta.Reference) (json.RawMessage, bool) {
	groupKind, ok := kindOf(ref)
	if !ok || ref.UID == "" || namespace != ref.Namespace && namespace != metav1.NamespaceDefault {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kinds[groupKind]
	if k == nil {
		c.addKind(groupKind, namespace)
		return nil, false
	}
	k.lastLookup = c.now()
	return c.store.lookup(k, namespace, ref)
}

// addKind begins with a new kind. There are at most maxKinds, and at most maxMissing that Events of one namespace name and that are not
// found yet. Beyond that another kind has to go. If none can go, a later Lookup tries again.
func (c *Cache) addKind(groupKind schema.GroupKind, namespace string) {
	if len(c.added) == cap(c.added) {
		return
	}
	missing := 0
	for _, k := range c.kinds {
		if !k.found && k.namespace == namespace {
			missing++
		}
	}
	switch {
	case missing >= maxMissing:
		if !c.removeKind(func(k *kind) bool { return !k.found && k.namespace == namespace }) {
			return
		}
	case len(c.kinds) >= c.maxKinds && !c.removeKind(func(*kind) bool { return true }):
		if !c.full {
			c.full = true
			c.logger.Warn("there are Events about too many kinds of objects: the metadata of further kinds is not looked up",
				"kind", groupKind.Kind, "group", groupKind.Group, "maxKinds", c.maxKinds)
		}
		return
	}
	k := &kind{GroupKind: groupKind, cache: c, namespace: namespace, lastLookup: c.now(), objects: map[cache.ObjectName]*entry{}}
	c.kinds[groupKind] = k
	c.added <- k
}

// removeKind removes a kind that does not exist or is idle: the one whose last Lookup is oldest. A kind that was not looked for yet stays,
// since a kind that exists would else never be found beside many that do not.
func (c *Cache) removeKind(may func(*kind) bool) bool {
	var last *kind
	for _, k := range c.kinds {
		if !k.found && !k.tried || k.found && c.now().Sub(k.lastLookup) < idleFor || !may(k) {
			continue
		}
		if last == nil || !k.found && last.found || k.found == last.found && k.lastLookup.Before(last.lastLookup) {
			last = k
		}
	}
	if last == nil {
		return false
	}
	delete(c.kinds, last.GroupKind)
	for _, e := range last.objects {
		c.store.remove(e)
	}
	last.stop()
	return true
}

// Run reads and watches the kinds that are looked up, until ctx ends and all of its goroutines have.
func (c *Cache) Run(ctx context.Context) {
	var watches sync.WaitGroup
	defer watches.Wait()
	for {
		select {
		case k := <-c.added:
			watches.Go(func() { k.run(ctx) })
		case <-ctx.Done():
			return
		}
	}
}
