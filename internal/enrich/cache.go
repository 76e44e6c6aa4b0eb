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

// Resolver says which resource shows the objects of a kind, and whether they have namespaces. It talks to the API
// server, and is never asked by Lookup.
type Resolver interface {
	ResourceOf(ctx context.Context, kind schema.GroupVersionKind) (gvr schema.GroupVersionResource, namespaced bool, err error)
}

// Options bound a [Cache].
type Options struct {
	// MaxBytes is the most memory that metadata may take, over all kinds, as far as it can be told.
	MaxBytes int64
	// MaxKinds is the most kinds that are watched or looked for; 0 is 100. Who may write Events can name any kind.
	MaxKinds int
	// DeletedFor is how long a deleted object is remembered, since Events about its end come later than the end itself;
	// 0 is 5 minutes.
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
	// wake tells Run that a kind was admitted or dismissed.
	wake chan struct{}

	mu    sync.Mutex // guards what follows; never held while anything is waited for
	kinds map[schema.GroupKind]*kind
	fresh []*kind // admitted, and not taken up by Run yet
	full  bool    // that there are too many kinds was told
	store store
}

// New makes a cache, empty and idle before Run.
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

// Bytes is what the metadata takes.
func (c *Cache) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store.bytes
}

// Lookup returns an object's labels, annotations and ownerReferences, those that it has, as a JSON object that must not
// be modified; of a deleted object those that it had. It returns false if they are not known, now: the kind is new, or
// cannot be read, or the object that has the name now has another uid. It never waits for the API server.
func (c *Cache) Lookup(ref delta.Reference) (json.RawMessage, bool) {
	gvk, ok := kindOf(ref)
	if !ok {
		return nil, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.kinds[gvk.GroupKind()]
	if k == nil {
		c.admit(gvk)
		return nil, false
	}
	k.asked = c.now()
	return c.store.lookup(k, ref)
}

// Run reads and watches the kinds that are asked about, until ctx ends; it returns when all that it started has ended.
func (c *Cache) Run(ctx context.Context) {
	var readers sync.WaitGroup
	defer readers.Wait()
	for {
		c.mu.Lock()
		fresh := c.fresh
		c.fresh = nil
		c.mu.Unlock()
		for _, k := range fresh {
			reading, stop := context.WithCancel(ctx)
			readers.Go(func() {
				defer stop()
				newReader(c, k).run(reading)
			})
			readers.Go(func() {
				select {
				case <-k.dismissed:
				case <-reading.Done():
				}
				stop()
			})
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return
		}
	}
}
