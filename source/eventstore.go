package source

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// eventStore is where a reflector puts what a watch sends: it passes each event on at once, and keeps nothing.
type eventStore struct{ forward func(e event) error }

var (
	_ cache.ReflectorStore         = eventStore{}
	_ cache.ReflectorBookmarkStore = eventStore{}
)

// Add implements [cache.ReflectorStore].
func (s eventStore) Add(o any) error { return s.take(watch.Added, o) }

// Update implements [cache.ReflectorStore].
func (s eventStore) Update(o any) error { return s.take(watch.Modified, o) }

// Delete implements [cache.ReflectorStore].
func (s eventStore) Delete(o any) error { return s.take(watch.Deleted, o) }

// Bookmark implements [cache.ReflectorBookmarkStore].
func (s eventStore) Bookmark(resourceVersion string) error {
	return s.forward(event{kind: watch.Bookmark, resourceVersion: resourceVersion})
}

// Replace implements [cache.ReflectorStore]; the follower's lists are empty.
func (eventStore) Replace([]any, string) error { return nil }

// Resync implements [cache.ReflectorStore].
func (eventStore) Resync() error { return nil }

func (s eventStore) take(kind watch.EventType, o any) error {
	return s.forward(event{kind: kind, object: o.(*item).object})
}

// item carries an object through a reflector, which reads its resource version and annotations and nothing else.
type item struct {
	metav1.Object // nil
	object        *delta.Object
}

// GetObjectKind implements [runtime.Object].
func (*item) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements [runtime.Object].
func (i *item) DeepCopyObject() runtime.Object { return i }

// GetResourceVersion implements [metav1.Object].
func (i *item) GetResourceVersion() string { return i.object.ResourceVersion() }

// GetAnnotations implements [metav1.Object].
func (*item) GetAnnotations() map[string]string { return nil }
