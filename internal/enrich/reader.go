package enrich

import (
	"context"
	"errors"
	"log/slog"
	"sync"
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

	"github.com/kubeferry/kubeferry/internal/delta"
)

const (
	// pageSize of lists: metadata in pages, so that no more than one is held beside what is kept.
	pageSize = 500
	// answerTimeout is for one request; a watch has a time-out of its own.
	answerTimeout = 90 * time.Second
)

// reader reads and watches the metadata of one kind. It is the Reflector's ListerWatcher and its store.
//
// The Reflector calls one method at a time, but returns at its context's end while a list may still be under way.
type reader struct {
	cache  *Cache
	kind   *kind
	logger *slog.Logger
	// collection is the resource's, once it is known.
	collection metadata.ResourceInterface
	gone       context.CancelFunc

	listing sync.Mutex // held by a list, and whenever what follows is used
	told    bool       // that the kind cannot be read
	objects int        // in the last complete list
	read    bool       // that was told
}

var (
	_ cache.ListerWatcherWithContext = (*reader)(nil)
	_ cache.ReflectorStore           = (*reader)(nil)
)

func newReader(c *Cache, k *kind) *reader {
	return &reader{cache: c, kind: k, logger: c.logger.With("kind", k.Kind, "group", k.Group)}
}

// run ends with ctx. A kind that cannot be found, now or any more, is looked for again.
func (r *reader) run(ctx context.Context) {
	for ctx.Err() == nil {
		resource, ok := r.find(ctx)
		if !ok {
			return
		}
		r.watch(ctx, resource)
		select {
		case <-time.After(r.cache.options.Backoff.Duration): // discovery may know it for a little longer
		case <-ctx.Done():
		}
	}
}

// find asks discovery for the kind's resource until it knows it. It returns false when ctx has ended.
func (r *reader) find(ctx context.Context) (schema.GroupVersionResource, bool) {
	for backoff := r.cache.options.Backoff; ; {
		resource, namespaced, err := r.cache.resolver.ResourceOf(ctx, r.kind.GroupVersionKind)
		if err == nil {
			r.cache.mu.Lock()
			defer r.cache.mu.Unlock()
			r.kind.found, r.kind.clusterScoped = true, !namespaced
			return resource, true
		}
		r.failed(ctx, err)
		select {
		case <-time.After(backoff.Step()):
		case <-ctx.Done():
			return resource, false
		}
	}
}

// watch runs a Reflector until ctx ends or the resource is gone.
func (r *reader) watch(ctx context.Context, resource schema.GroupVersionResource) {
	// What goes wrong is told by failed, once; client-go would tell it at every attempt.
	ctx, r.gone = context.WithCancel(klog.NewContext(ctx, logr.Discard()))
	defer r.gone()
	r.listing.Lock()
	r.collection = r.cache.client.Resource(resource)
	r.listing.Unlock()
	logger := klog.FromContext(ctx)
	backoff := r.cache.options.Backoff
	name := delta.ResourceName(resource)
	cache.NewReflectorWithOptions(r, &metav1.PartialObjectMetadata{}, r, cache.ReflectorOptions{
		Name: "enrich " + name, TypeDescription: name, Logger: &logger, Backoff: &backoff,
	}).RunWithContext(ctx)
	r.listing.Lock() // a list that begins later finds its context ended
	defer r.listing.Unlock()
}

// IsWatchListSemanticsUnSupported keeps the Reflector from a watch-list, all of which it would hold in memory.
func (*reader) IsWatchListSemanticsUnSupported() bool { return true }

// ListWithContext reads the collection page by page into the cache. The list that it returns is empty, for the
// Reflector would gather all of it first.
func (r *reader) ListWithContext(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	r.listing.Lock()
	defer r.listing.Unlock()
	if ctx.Err() != nil { // left over from a Reflector that has ended
		return nil, ctx.Err()
	}
	objects := 0
	r.begin()
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := r.page(ctx, options)
		if err != nil {
			r.listFailed(ctx, err)
			return nil, err
		}
		for i := range page.Items {
			r.put(&page.Items[i])
		}
		objects += len(page.Items)
		if options.Continue = page.Continue; options.Continue != "" {
			continue
		}
		r.end()
		r.objects = objects
		page.Items = nil
		return page, nil
	}
}

func (r *reader) page(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return r.collection.List(ctx, options)
}

// listFailed tells of an error, and goes back to discovery if the resource may be gone.
func (r *reader) listFailed(ctx context.Context, err error) {
	r.tell(ctx, err)
	if apierrors.IsNotFound(err) {
		r.cache.mu.Lock()
		r.kind.found = false
		r.kind.round++ // a complete list that holds nothing
		r.cache.store.sweep(r.kind, r.cache.now())
		r.cache.mu.Unlock()
		r.gone()
	}
}

func (r *reader) failed(ctx context.Context, err error) {
	r.listing.Lock()
	defer r.listing.Unlock()
	r.tell(ctx, err)
}

// tell warns of the first error since the kind could be read. Events are marked as long as it lasts.
func (r *reader) tell(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	log := r.logger.Debug
	if !r.told {
		log = r.logger.Warn
	}
	r.told = true
	hint := "trying again"
	if apierrors.IsForbidden(err) {
		hint = "it takes the rights to list and watch the resource in all namespaces"
	}
	log("the objects of a kind that Events are about cannot be read", "hint", hint, "err", err)
}

// WatchWithContext watches on from a list.
func (r *reader) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	w, err := r.collection.Watch(ctx, metav1.ListOptions{
		ResourceVersion: options.ResourceVersion, TimeoutSeconds: options.TimeoutSeconds, AllowWatchBookmarks: true,
	})
	switch {
	case err == nil:
		r.succeeded()
	case !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err): // after those it lists again
		r.failed(ctx, err)
	}
	return w, err
}

// succeeded tells that a kind can be read, at first and after an error.
func (r *reader) succeeded() {
	r.listing.Lock()
	defer r.listing.Unlock()
	if !r.read || r.told {
		r.logger.Info("the objects of a kind that Events are about are known", "objects", r.objects)
	}
	r.read, r.told = true, false
}

// List implements cache.ListerWatcher.
func (r *reader) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// Watch implements cache.ListerWatcher.
func (r *reader) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

var errNoMetadata = errors.New("the API server sent something else than metadata")

// Add implements cache.ReflectorStore.
func (r *reader) Add(obj any) error {
	object, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return errNoMetadata
	}
	r.put(object)
	return nil
}

// Update implements cache.ReflectorStore.
func (r *reader) Update(obj any) error { return r.Add(obj) }

// Delete implements cache.ReflectorStore.
func (r *reader) Delete(obj any) error {
	object, ok := obj.(*metav1.PartialObjectMetadata)
	if !ok {
		return errNoMetadata
	}
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	r.cache.store.deleted(r.kind, place{object.Namespace, object.Name}, object.UID, r.cache.now())
	return nil
}

// Replace implements cache.ReflectorStore. ListWithContext did it already.
func (*reader) Replace([]any, string) error { return nil }

// Resync implements cache.ReflectorStore.
func (*reader) Resync() error { return nil }

func (r *reader) begin() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	r.kind.round++
}

func (r *reader) end() {
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	r.cache.store.sweep(r.kind, r.cache.now())
}

func (r *reader) put(object *metav1.PartialObjectMetadata) {
	metadata := encode(object)
	r.cache.mu.Lock()
	defer r.cache.mu.Unlock()
	select {
	case <-r.kind.dismissed: // nobody would ever take it out again
	default:
		r.cache.store.put(r.kind, place{object.Namespace, object.Name}, object.UID, metadata, r.cache.now())
	}
}
