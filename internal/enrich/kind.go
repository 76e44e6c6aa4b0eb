package enrich

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/kubeferry/kubeferry/internal/delta"
)

const (
	// pageSize of lists, and maxPages of all kinds at once, each of pageBytes at most: no more is in memory beside what the store
	// keeps. Whoever may create Events chooses which kinds are read.
	pageSize = 100
	maxPages = 2
	// pageTimeout ends the read of a page that does not arrive, as behind a proxy that hangs, since others wait for it.
	pageTimeout = time.Minute
)

// kind is one kind that Events were about, in whatever version. It keeps its objects in the cache's store, by a
// Reflector of which it is the store as well. A list that ends after the cache removed the kind has no effect.
type kind struct {
	schema.GroupKind
	cache     *Cache
	namespace string // of the first Event

	// The cache's mutex guards these.
	lastLookup           time.Time
	tried                bool // discovery failed, or did not have it
	found, clusterScoped bool // from discovery
	objects              map[cache.ObjectName]*entry
	lists                int                // an object that the latest list did not hold was deleted
	stop                 context.CancelFunc // ends run

	// The goroutine of run uses these.
	resource metadata.ResourceInterface
	gone     context.CancelFunc // ends the Reflector, since the resource does not exist
	listed   int                // objects in the latest list
	readable bool               // was logged last
	failing  bool               // was logged last
}

var _ cache.ReflectorStore = (*kind)(nil)

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

// run returns when ctx ends. A kind that discovery does not have, or has no more, is looked for again.
func (k *kind) run(ctx context.Context) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	k.update(func(*store) { k.stop = stop })
	_ = k.cache.backoff.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		resource, namespaced, err := k.cache.resolver.ResourceOf(ctx, k.GroupKind)
		if err == nil {
			k.reflect(ctx, resource, namespaced)
		} else {
			k.update(func(*store) { k.tried = true })
			k.report(ctx, err)
		}
		return false, nil
	})
}

// reflect runs a Reflector until ctx ends or the resource is gone.
func (k *kind) reflect(ctx context.Context, resource schema.GroupVersionResource, namespaced bool) {
	k.update(func(*store) { k.found, k.clusterScoped = true, !namespaced })
	// The Reflector would log each failed attempt; report logs the first.
	ctx, k.gone = context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	defer k.gone()
	k.resource = k.cache.client.Resource(resource)
	logger, backoff := klog.FromContext(ctx), k.cache.backoff
	lw := listWatch{&cache.ListWatch{ListWithContextFunc: k.list, WatchFuncWithContext: k.watch}}
	cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, k, cache.ReflectorOptions{
		Name: "enrich " + k.String(), Logger: &logger, Backoff: &backoff,
	}).RunWithContext(ctx)
}

// listWatch keeps the Reflector from streaming lists: it would hold all of one in memory.
type listWatch struct{ *cache.ListWatch }

func (listWatch) IsWatchListSemanticsUnSupported() bool { return true }

// list reads the collection page by page into the store. The list that it returns is empty, since the Reflector would
// hold all of it in memory.
func (k *kind) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	k.update(func(*store) { k.lists++ })
	for options, listed := (metav1.ListOptions{Limit: pageSize}), 0; ; {
		page, err := k.readPage(ctx, options)
		if errors.Is(err, errTooLarge) {
			options.Limit = max(options.Limit/4, 1)
			continue
		}
		if err != nil {
			k.report(ctx, err)
			if apierrors.IsNotFound(err) {
				k.update(func(s *store) {
					k.found = false
					s.sweep(k, k.cache.now())
				})
				k.gone()
			}
			return nil, err
		}
		listed += len(page.Items)
		options.Limit = min(2*options.Limit, pageSize)
		if options.Continue, page.Items = page.Continue, nil; options.Continue == "" {
			k.update(func(s *store) { s.sweep(k, k.cache.now()) })
			k.listed = listed
			return page, nil
		}
	}
}

// readPage reads a page into the store, once fewer than maxPages are being read.
func (k *kind) readPage(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	select {
	case k.cache.pages <- struct{}{}:
		defer func() { <-k.cache.pages }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, pageTimeout)
	defer cancel()
	page, err := k.resource.List(ctx, options)
	if err != nil {
		return nil, err
	}
	for i := range page.Items {
		k.put(&page.Items[i])
	}
	return page, nil
}

// watch continues after a list.
func (k *kind) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := k.resource.Watch(ctx, options)
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) { // after those it lists again
		k.report(ctx, err)
	}
	return w, err
}

// report logs that the kind can be read, or cannot: the first time as a warning, unless there were many.
func (k *kind) report(ctx context.Context, err error) {
	logger, level, hint := k.cache.logger.With("kind", k.Kind, "group", k.Group), slog.LevelWarn, "trying again"
	switch {
	case ctx.Err() != nil:
		return
	case err == nil:
		if !k.readable {
			logger.Info("the objects of a kind that Events are about are known", "objects", k.listed)
		}
		k.readable, k.failing = true, false
		return
	case k.failing, !apierrors.IsForbidden(err) && !k.cache.warnings.TryAccept():
		level = slog.LevelDebug
	}
	if apierrors.IsForbidden(err) {
		hint = "it takes the rights to list and watch the resource in all namespaces"
	}
	k.readable, k.failing = false, true
	logger.Log(ctx, level, "the objects of a kind that Events are about cannot be read", "hint", hint, "err", err)
}

// update changes the kind and its objects, unless the cache has removed the kind.
func (k *kind) update(change func(s *store)) {
	k.cache.mu.Lock()
	defer k.cache.mu.Unlock()
	if k.cache.kinds[k.GroupKind] == k {
		change(&k.cache.store)
	}
}

// put stores what [Cache.Lookup] returns of an object. The object belongs to the kind.
func (k *kind) put(object *metav1.PartialObjectMetadata) {
	delete(object.Annotations, delta.LastApplied)
	if k.GroupKind == (schema.GroupKind{Kind: "Secret"}) {
		object.Annotations = nil // tools keep copies of its data there
	}
	raw, _ := json.Marshal(struct { // strings and booleans can be encoded
		Labels          map[string]string       `json:"labels,omitempty"`
		Annotations     map[string]string       `json:"annotations,omitempty"`
		OwnerReferences []metav1.OwnerReference `json:"ownerReferences,omitempty"`
	}{object.Labels, object.Annotations, object.OwnerReferences})
	k.update(func(s *store) { s.put(k, cache.MetaObjectToName(object), object.UID, raw, k.cache.now()) })
}

// Add implements [cache.ReflectorStore]. The Reflector passes on no other type.
func (k *kind) Add(obj any) error {
	k.put(obj.(*metav1.PartialObjectMetadata))
	return nil
}

// Update implements [cache.ReflectorStore].
func (k *kind) Update(obj any) error { return k.Add(obj) }

// Delete implements [cache.ReflectorStore].
func (k *kind) Delete(obj any) error {
	object := obj.(*metav1.PartialObjectMetadata)
	k.update(func(s *store) { s.delete(k, cache.MetaObjectToName(object), object.UID, k.cache.now()) })
	return nil
}

// Replace implements [cache.ReflectorStore]: list has stored the objects.
func (*kind) Replace([]any, string) error { return nil }

// Resync implements [cache.ReflectorStore].
func (*kind) Resync() error { return nil }
