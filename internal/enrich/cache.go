// Package enrich keeps the metadata of the objects that Events are about: labels, annotations and owners.
//
// A watch of these objects calls Put and Delete. Memory is bounded: the object that was not looked up for the longest goes first, and
// returns with its next change.
package enrich

import (
	"container/list"
	"encoding/json"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// deletedFor is how long a deleted object is kept, since Events about its end arrive after the end.
const deletedFor = 5 * time.Minute

// Cache holds metadata. Its methods may be called from several goroutines.
type Cache struct {
	maxBytes int64

	mu      sync.Mutex // guards what follows
	bytes   int64
	entries map[key]*entry
	used    list.List // of *entry: looked up or new last at the front
}

// key identifies an object, in whatever version. The namespace of a cluster-scoped one is empty.
type key struct {
	kind            schema.GroupKind
	namespace, name string
}

type entry struct {
	key
	uid      types.UID
	metadata json.RawMessage // as Lookup returns it

	used   *list.Element
	forget *time.Timer // removes it; nil while the object exists
}

// overhead is about what an entry takes beside its strings: itself, a list element, its place in the map, and what
// the allocator rounds up. Of 100,000 Pods it was 322 bytes each.
const overhead = 350

func (e *entry) size() int64 {
	return int64(len(e.metadata)+len(e.namespace)+len(e.name)+len(e.uid)) + overhead
}

// New makes an empty cache that takes about maxBytes of memory at most.
func New(maxBytes int64, registry prometheus.Registerer) *Cache {
	c := &Cache{maxBytes: maxBytes, entries: map[key]*entry{}}
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kubeferry_enrichment_bytes", Help: "Memory that the metadata of the objects takes that Events are about. enrichment.maxBytes limits it.",
	}, func() float64 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return float64(c.bytes)
	}))
	return c
}

// Lookup returns the labels, annotations and ownerReferences that an object has, or had before its deletion, as a JSON object. The caller
// must not modify it. It returns false if they are not in the cache: the object was not read, or the object of that name has another uid.
//
// namespace is that of the Event. Whoever may write Events there must not read of other namespaces. So the object has to be in the same
// namespace, or it has none and the Event is in default, where Kubernetes writes such Events.
func (c *Cache) Lookup(namespace string, ref delta.Reference) (json.RawMessage, bool) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil || ref.UID == "" {
		return nil, false
	}
	of := key{schema.GroupKind{Group: gv.Group, Kind: ref.Kind}, ref.Namespace, ref.Name}
	c.mu.Lock()
	defer c.mu.Unlock()
	e, belongs := c.entries[of], ref.Namespace
	if e == nil || of.namespace == "" { // a cluster-scoped object, which some Events name with a namespace
		of.namespace, belongs = "", metav1.NamespaceDefault
		e = c.entries[of]
	}
	// The kubelet writes the name of its Node where the uid belongs.
	kubelet := of.kind == schema.GroupKind{Kind: "Node"} && string(ref.UID) == ref.Name
	if e == nil || namespace != belongs || ref.UID != e.uid && !kubelet {
		return nil, false
	}
	c.used.MoveToFront(e.used)
	return e.metadata, true
}

// Put stores the metadata of an object as it is now. A new object counts as looked up, since the next Events are most likely about it; one
// that has changed does not.
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
	of := keyOf(object)
	delete(decoded.Metadata.Annotations, delta.LastApplied)
	if of.kind == (schema.GroupKind{Kind: "Secret"}) {
		decoded.Metadata.Annotations = nil // tools keep copies of its data there
	}
	metadata, _ := json.Marshal(decoded.Metadata) // strings and booleans can be encoded
	c.put(of, object.UID(), metadata)
}

func (c *Cache) put(of key, uid types.UID, metadata json.RawMessage) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := &entry{key: of, uid: uid, metadata: metadata}
	if before := c.entries[of]; before != nil {
		e.used = c.used.InsertBefore(e, before.used)
		c.remove(before)
	} else {
		e.used = c.used.PushFront(e)
	}
	c.entries[of] = e
	if c.bytes += e.size(); e.size() > c.maxBytes { // else it would evict all others, and then itself
		c.remove(e)
	}
	for c.bytes > c.maxBytes {
		c.remove(c.used.Back().Value.(*entry))
	}
}

// Delete notes that an object was deleted.
func (c *Cache) Delete(object *delta.Object) { c.delete(keyOf(object), object.UID()) }

func (c *Cache) delete(of key, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.entries[of]; e != nil && e.uid == uid && e.forget == nil {
		e.forget = time.AfterFunc(deletedFor, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.entries[of] == e {
				c.remove(e)
			}
		})
	}
}

func (c *Cache) remove(e *entry) {
	c.used.Remove(e.used)
	delete(c.entries, e.key)
	c.bytes -= e.size()
	if e.forget != nil {
		e.forget.Stop()
	}
}

func keyOf(object *delta.Object) key {
	return key{schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind()).GroupKind(), object.Namespace(), object.Name()}
}
