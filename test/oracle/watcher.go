package oracle

import (
	"context"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
)

// watcher follows one resource in one scope.
type watcher struct {
	oracle    *Oracle
	resource  schema.GroupVersionResource
	namespace string
	client    metadata.ResourceInterface
	selector  metav1.ListOptions
	history   history
}

func (w *watcher) String() string {
	name := w.resource.GroupResource().String()
	if w.namespace != "" {
		name += " in " + w.namespace
	}
	return name
}

func (w *watcher) begin(ctx context.Context) error {
	states, version, err := w.list(ctx)
	if err != nil {
		return err
	}
	return w.history.begin(states, version)
}

// run watches until ctx ends. Whatever breaks a watch, the next one continues after the last change.
func (w *watcher) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := w.watch(ctx)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			if err := w.mend(ctx); err != nil {
				return fmt.Errorf("%s: %w", w, err)
			}
			continue
		}
		if apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return fmt.Errorf("%s: %w", w, err)
		}
		if err != nil { // most likely the API server is restarting
			pause(ctx)
		}
	}
	return nil
}

// watch reads one watch to its end. A watch that simply ends is no error.
func (w *watcher) watch(ctx context.Context) error {
	w.oracle.mu.Lock()
	last := w.history.last
	w.oracle.mu.Unlock()

	opts := w.selector
	opts.ResourceVersion = last
	opts.AllowWatchBookmarks = true
	stream, err := w.client.Watch(ctx, opts)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-stream.ResultChan():
			if !ok {
				return nil
			}
			if err := w.record(event); err != nil {
				return err
			}
		}
	}
}

func (w *watcher) record(event watch.Event) error {
	if event.Type == watch.Error {
		return apierrors.FromObject(event.Object)
	}
	s, err := stateOf(event.Object)
	if err != nil {
		return err
	}
	w.oracle.mu.Lock()
	defer w.oracle.mu.Unlock()
	if event.Type == watch.Bookmark {
		w.history.last = s.version
		return nil
	}
	w.history.add(change{state: s, typ: string(event.Type)})
	return nil
}

// mend lists again after history was refused.
func (w *watcher) mend(ctx context.Context) error {
	for {
		states, version, err := w.list(ctx)
		if err == nil {
			w.oracle.mu.Lock()
			defer w.oracle.mu.Unlock()
			return w.history.mend(states, version)
		}
		pause(ctx)
		if ctx.Err() != nil {
			return err
		}
	}
}

// list reads everything in pages, consistently: an unset resource version means the newest.
func (w *watcher) list(ctx context.Context) (map[key]state, string, error) {
	opts := w.selector
	opts.Limit = 500
	states := map[key]state{}
	for {
		page, err := w.client.List(ctx, opts)
		if apierrors.IsResourceExpired(err) && opts.Continue != "" { // compacted meanwhile
			opts.Continue = ""
			clear(states)
			continue
		}
		if err != nil {
			return nil, "", fmt.Errorf("list %s: %w", w, err)
		}
		for i := range page.Items {
			s, err := stateOf(&page.Items[i])
			if err != nil {
				return nil, "", fmt.Errorf("list %s: %w", w, err)
			}
			states[s.key()] = s
		}
		if opts.Continue = page.GetContinue(); opts.Continue == "" {
			return states, page.GetResourceVersion(), nil
		}
	}
}

// newest is the version that the server is at.
func (w *watcher) newest(ctx context.Context) (uint64, error) {
	page, err := w.client.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("list %s: %w", w, err)
	}
	return strconv.ParseUint(page.GetResourceVersion(), 10, 64)
}

func stateOf(o runtime.Object) (state, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return state{}, err
	}
	s := state{
		namespace: m.GetNamespace(), name: m.GetName(), uid: string(m.GetUID()), version: m.GetResourceVersion(),
	}
	s.rank, err = strconv.ParseUint(s.version, 10, 64)
	return s, err
}

// pause keeps a broken connection from becoming a busy loop.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond):
	}
}
