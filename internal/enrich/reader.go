package enrich

import (
	"context"
	"encoding/json"
	"log/slog"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

const (
	// pageSize of lists: no more than one page is in memory beside what the store keeps.
	pageSize = 500
	// listTimeout ends a list of which no page arrives any more, as behind a proxy that hangs.
	listTimeout = 10 * time.Minute
)

// reader keeps the objects of one kind in the store, by a Reflector of which it is the store as well. A list that ends
// after the Reflector has no effect: the kind is not in the cache any more, or the program ends.
type reader struct {
	cache    *Cache
	kind     *kind
	logger   *slog.Logger
	resource metadata.ResourceInterface
	gone     context.CancelFunc // ends the Reflector, since the resource does not exist
	objects  int                // in the latest list
	read     bool               // the log says that the kind can be read
	failing  bool               // the log says that it cannot
}

var _ cache.ReflectorStore = (*reader)(nil)

func newReader(c *Cache, k *kind) *reader {
	return &reader{cache: c, kind: k, logger: c.logger.With("kind", k.Kind, "group", k.Group)}
}

// run returns when ctx ends. A kind that discovery does not have, or has no more, is looked for again.
func (r *reader) run(ctx context.Context) {
	for backoff := r.cache.options.Backoff; ctx.Err() == nil; {
		resource, namespaced, err := r.cache.resolver.ResourceOf(ctx, r.kind.GroupKind)
		if err == nil {
			r.reflect(ctx, resource, namespaced)
		} else {
			r.report(ctx, err)
		}
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
		}
	}
}

// reflect runs a Reflector until ctx ends or the resource is gone.
func (r *reader) reflect(ctx context.Context, resource schema.GroupVersionResource, namespaced bool) {
	r.update(func(*store) { r.kind.found, r.kind.clusterScoped = true, !namespaced })
	// The Reflector would log each failed attempt; report logs the first.
	ctx, r.gone = context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	defer r.gone()
	r.resource = r.cache.client.Resource(resource)
	logger, backoff := klog.FromContext(ctx), r.cache.options.Backoff
	lw := listWatch{&cache.ListWatch{ListWithContextFunc: r.list, WatchFuncWithContext: r.watch}}
	cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, r, cache.ReflectorOptions{
		Name: "enrich " + r.kind.String(), Logger: &logger, Backoff: &backoff,
	}).RunWithContext(ctx)
}

// listWatch keeps the Reflector from streaming lists: it would hold all of one in memory.
type listWatch struct{ *cache.ListWatch }

func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// list reads the collection page by page into the store. The list that it returns is empty, since the Reflector would
// hold all of it in memory.
func (r *reader) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	reading, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	r.update(func(*store) { r.kind.lists++ })
	options := metav1.ListOptions{Limit: pageSize}
	for objects := 0; ; {
		page, err := r.resource.List(reading, options)
		if err != nil {
			r.report(ctx, err)
			if apierrors.IsNotFound(err) {
				r.update(func(s *store) {
					r.kind.found = false
					r.kind.lists++ // as if the list were empty
					s.sweep(r.kind, r.cache.now())
				})
				r.gone()
			}
			return nil, err
		}
		for i := range page.Items {
			r.put(&page.Items[i])
		}
		objects += len(page.Items)
		if options.Continue = page.Continue; options.Continue == "" {
			r.update(func(s *store) { s.sweep(r.kind, r.cache.now()) })
			r.objects = objects
			page.Items = nil
			return page, nil
		}
	}
}

// watch continues after a list.
func (r *reader) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := r.resource.Watch(ctx, options)
	switch {
	case err == nil && (!r.read || r.failing):
		r.logger.Info("the objects of a kind that Events are about are known", "objects", r.objects)
		r.read, r.failing = true, false
	case err != nil && !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err): // after those it lists again
		r.report(ctx, err)
	}
	return w, err
}

// report logs that the kind cannot be read: the first time as a warning.
func (r *reader) report(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	log := r.logger.Debug
	if !r.failing {
		log = r.logger.Warn
	}
	r.failing = true
	hint := "trying again"
	if apierrors.IsForbidden(err) {
		hint = "it takes the rights to list and watch the resource in all namespaces"
	}
	log("the objects of a kind that Events are about cannot be read", "hint", hint, "err", err)
}

// update changes the kind and its objects, unless the cache has dropped the kind.
func (r *reader) update(change func(s *store)) {
	c := r.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds[r.kind.GroupKind] == r.kind {
		change(&c.store)
	}
}

// lastApplied holds a copy of the whole object, of Secrets too.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// put stores what [Cache.Lookup] returns of an object. The object belongs to the reader.
func (r *reader) put(object *metav1.PartialObjectMetadata) {
	delete(object.Annotations, lastApplied)
	raw, err := json.Marshal(struct {
		Labels          map[string]string       `json:"labels,omitempty"`
		Annotations     map[string]string       `json:"annotations,omitempty"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences,omitempty"`
	}{object.Labels, object.Annotations, object.OwnerReferences})
	if err != nil {
		panic(err) // strings and booleans can be encoded
	}
	r.update(func(s *store) {
		s.put(r.kind, place{object.Namespace, object.Name}, object.UID, raw, r.cache.now())
	})
}

// Add implements [cache.ReflectorStore]. The Reflector passes on no other type.
func (r *reader) Add(obj any) error {
	r.put(obj.(*metav1.PartialObjectMetadata))
	return nil
}

// Update implements [cache.ReflectorStore].
func (r *reader) Update(obj any) error { return r.Add(obj) }

// Delete implements [cache.ReflectorStore].
func (r *reader) Delete(obj any) error {
	object := obj.(*metav1.PartialObjectMetadata)
	r.update(func(s *store) {
		s.delete(r.kind, place{object.Namespace, object.Name}, object.UID, r.cache.now())
	})
	return nil
}

// Replace implements [cache.ReflectorStore]: list has stored the objects.
func (*reader) Replace([]any, string) error { return nil }

// Resync implements [cache.ReflectorStore].
func (*reader) Resync() error { return nil }
