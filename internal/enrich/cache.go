// Package enrich keeps the metadata of the objects that Events are about: labels, annotations and owners.
//
// A watch of these objects calls Put and Delete. Memory is bounded: the object that was not looked up for the longest goes first, and
// returns with its next change.
package enrich

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// deletedFor is how long a deleted object is kept, since Events about its end arrive after the end.
const deletedFor = 5 * time.Minute

// Cache holds metadata. Its methods may be called from several goroutines.
type Cache struct {
	mu    sync.Mutex // guards what follows
	store *store
}

// New makes an empty cache that takes about maxBytes of memory at most.
func New(maxBytes int64, registry prometheus.Registerer) *Cache {
	c := &Cache{store: newStore(maxBytes, deletedFor)}
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
// must not modify it. It returns false if they are not in the cache: the object was not read, or the object of that name has another uid.
//
// namespace is that of the Event. Whoever may write Events there must not read of other namespaces. So the object has to be in the same
// namespace, or it has none and the Event is in default, where Kubernetes writes such Events.
func (c *Cache) Lookup(namespace string, ref delta.Reference) (json.RawMessage, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store.lookup(namespace, ref)
}

// Put stores the metadata of an object as it is now.
func (c *Cache) Put(object *delta.Object) {
	var decoded struct {
		Metadata struct {
			Labels          map[string]string       `json:"labels,omitempty"`
			Annotations     map[string]string       `json:"annotations,omitempty"`
			OwnerReferences []metav1.OwnerReference `json:"ownerReferences,omitempty"`
		} `json:"metadata"`
	}
	if json.Unmarshal(object.JSON(), &decoded) != nil {
		return // an API server sends no such object
	}
	key := keyOf(object)
	delete(decoded.Metadata.Annotations, delta.LastApplied)
	if key.kind == (schema.GroupKind{Kind: "Secret"}) {
		decoded.Metadata.Annotations = nil // tools keep copies of its data there
	}
	metadata, _ := json.Marshal(decoded.Metadata) // strings and booleans can be encoded
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store.put(key, object.UID(), metadata, time.Now())
}

// Delete notes that an object was deleted.
func (c *Cache) Delete(object *delta.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store.delete(keyOf(object), object.UID(), time.Now())
}

func keyOf(object *delta.Object) key {
	return key{schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind()).GroupKind(), object.Namespace(), object.Name()}
}
