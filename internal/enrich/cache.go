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
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Resolver finds the resource of a kind by discovery, and whether its objects have namespaces.
type Resolver interface {
	ResourceOf(ctx context.Context, kind schema.GroupKind) (gvr schema.GroupVersionResource, namespaced bool, err error)
}

// Options bound a [Cache].
type Options struct {
	// MaxBytes is the most memory that the metadata of all kinds may take, as estimated.
	MaxBytes int64
	// MaxKinds is the most kinds that are watched or looked for; 0 is 100. An Event can name any kind.
	MaxKinds int
	// DeletedFor is how long a deleted object is kept, since Events about its end arrive after the end; 0 is 5 minutes.
	DeletedFor time.Duration
	// Backoff spaces the attempts to find and to read a kind; the zero value begins at 1 s and ends at 1 min.
	Backoff wait.Backoff
}

// Cache holds metadata. Lookup may be called from several goroutines, before Run and after it as well.
type Cache struct {
	resolver Resolver
	client   metadata.Interface
	options  Options
	logger   *slog.Logger
	now      func() time.Time
	wake     chan struct{} // Run waits for it: there are new kinds

	mu    sync.Mutex // guards what follows; not held during requests
	kinds map[schema.GroupKind]*kind
	added []*kind // in kinds, and not watched yet
	full  bool    // the warning about too many kinds was logged
	store store
}

// New makes a cache; it is empty until Run.
func New(resolver Resolver, client metadata.Interface, options Options, registry prometheus.Registerer, logger *slog.Logger) *Cache {
	if options.MaxKinds == 0 {
		options.MaxKinds = 100
	}
	if options.DeletedFor == 0 {
		options.DeletedFor = 5 * time.Minute
	}
	if options.Backoff.Duration == 0 {
		options.Backoff = wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 7, Cap: time.Minute}
	}
	c := &Cache{
		resolver: resolver, client: client, options: options, logger: logger, now: time.Now,
		wake: make(chan struct{}, 1), kinds: map[schema.GroupKind]*kind{},
		store: store{maxBytes: options.MaxBytes, deletedFor: options.DeletedFor},
	}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubeferry_enrichment_bytes", Help: "Memory that the metadata of objects takes that Events may be about, as it counts towards enrichment.maxBytes.",
	}, func() float64 { return float64(c.Bytes()) }))
	return c
}

// Bytes returns what the metadata takes, as estimated.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store.bytes
}

// Lookup returns the labels, annotations and ownerReferences that an object has, or had before its deletion, as a JSON
// object that must not be modified. It returns false if they are not in the cache: the kind is new or cannot be read, or
// the object of that name has another uid. It never waits for the API server.
func (c *Cache) Lookup(ref delta.Reference) (json.RawMessage, bool) {
	groupKind, ok := kindOf(ref)
	if !ok {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kinds[groupKind]
	if k == nil {
		c.addKind(groupKind)
		return nil, false
	}
	k.lastLookup = c.now()
	return c.store.lookup(k, ref)
}

// Run reads and watches the kinds that are looked up, until ctx ends and all of its goroutines have.
func (c *Cache) Run(ctx context.Context) {
	var readers sync.WaitGroup
	defer readers.Wait()
	for {
		c.mu.Lock()
		for _, k := range c.added {
			reading, stop := context.WithCancel(ctx)
			k.stop = stop
			readers.Go(func() {
				defer stop()
				newReader(c, k).run(reading)
			})
		}
		c.added = nil
		c.mu.Unlock()
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
	}
}
