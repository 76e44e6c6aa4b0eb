package source

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file decides which watches a source has whose namespaces are selected by labels, or whose resources by wildcards: those of each
// resource in each namespace that is selected now. Watches begin and end while the source runs, each by itself. What cannot be read ends none.

// selectInterval is how often the selection is compared with the watches, beside each time that it changes.
const selectInterval = time.Second

// selection is what the configuration of a source selects, and which objects that are now. The goroutine of [Source.follow] owns it. What has
// a lock is the exception.
type selection struct {
	namespaces *namespaceSet // nil without a selector
	groups     *groups       // nil without wildcards
	changed    chan struct{}
	// settled is set once all that is selected has watches, and later also if the last run had some: what is selected from then on may be new.
	// raises is set if something may have been sent of what is selected from now on, by an earlier watch.
	settled, later, raises bool
	// store is the state directory, and before are the watches of the last run that ended with it, until settled.
	store  Store
	before map[string]Meta
}

// newSelection returns nil if a source has neither a selector of namespaces nor wildcards.
func newSelection(s *Source) *selection {
	if len(s.options.selecting()) == 0 {
		return nil
	}
	l := &selection{changed: make(chan struct{}, 1)}
	if s.options.NamespaceSelector != "" {
		l.namespaces = newNamespaceSet(s, l.wake)
	}
	if len(s.options.wildcards()) > 0 {
		l.groups = newGroups(s, l.wake)
	}
	return l
}

// named are the resources that are no wildcards, and wildcards the others.
func (o *Options) named() []schema.GroupVersionResource {
	return slices.DeleteFunc(slices.Clone(o.Resources), delta.IsWildcard)
}

func (o *Options) wildcards() []schema.GroupVersionResource {
	isNamed := func(r schema.GroupVersionResource) bool { return !delta.IsWildcard(r) }
	return slices.DeleteFunc(slices.Clone(o.Resources), isNamed)
}

// groups are those of the wildcards.
func (o *Options) groups() (names []string) {
	for _, w := range o.wildcards() {
		names = append(names, w.Group)
	}
	return names
}

// selecting are what the watches are selected by, as resources: namespaces, and wildcards.
func (o *Options) selecting() (all []schema.GroupVersionResource) {
	if o.NamespaceSelector != "" {
		all = append(all, namespaces)
	}
	return append(all, o.wildcards()...)
}

// covered reports whether a resource is watched because of a wildcard.
func (o *Options) covered(r schema.GroupVersionResource) bool {
	same := func(other schema.GroupVersionResource) bool { return other.GroupResource() == r.GroupResource() }
	covers := func(wildcard schema.GroupVersionResource) bool { return delta.Covers(wildcard, r) }
	return slices.ContainsFunc(o.wildcards(), covers) && !slices.Contains(o.Exclude, r.GroupResource()) && !slices.ContainsFunc(o.named(), same)
}

func (l *selection) wake() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// run reads what is selected until ctx ends.
func (l *selection) run(ctx context.Context) {
	var running sync.WaitGroup
	if l.namespaces != nil {
		running.Go(func() { l.namespaces.watch.Run(ctx) })
	}
	if l.groups != nil {
		running.Go(func() { l.groups.run(ctx) })
	}
	running.Wait()
}

func (l *selection) status() (all []WatchStatus) {
	if l == nil {
		return nil
	}
	if l.namespaces != nil {
		all = append(all, l.namespaces.watch.Status()...)
	}
	if l.groups != nil {
		all = append(all, l.groups.status()...)
	}
	return all
}

// scopes are those of the namespaces that are selected. They are complete once all namespaces were read.
func (l *selection) scopes(o *Options) (selected []scope, complete bool) {
	if l.namespaces == nil {
		return scopes(o.Namespaces, o.FieldSelector), true
	}
	for _, name := range l.namespaces.all() {
		if o.Namespaces.Match(name) {
			selected = append(selected, scope{namespace: name, fieldSelector: o.FieldSelector})
		}
	}
	return selected, l.namespaces.complete()
}

// matching returns the resources of wildcards that are served: each in a version that is watched already, or else in the one that the API
// server prefers.
func (o *Options) matching(served []Served, watched []schema.GroupVersionResource) (found []schema.GroupVersionResource) {
	for _, one := range served {
		r := one.GroupVersionResource
		if !o.covered(r) || !one.Namespaced && o.restricted() {
			continue
		}
		n := slices.IndexFunc(found, func(other schema.GroupVersionResource) bool { return other.GroupResource() == r.GroupResource() })
		switch {
		case n < 0:
			found = append(found, r)
		case slices.Contains(watched, r) && !slices.Contains(watched, found[n]):
			found[n] = r
		}
	}
	return found
}

// resources are those that are named, and those of wildcards. They are complete once every group was read.
func (s *Source) resources() (selected []schema.GroupVersionResource, complete bool) {
	if s.selection.groups == nil {
		return s.options.named(), true
	}
	served, complete := s.selection.groups.served()
	return append(s.options.named(), s.options.matching(served, s.Resources())...), complete
}

// follow begins and ends watches as the selection changes, until ctx ends.
func (s *Source) follow(ctx context.Context, running *sync.WaitGroup) {
	ticker := time.NewTicker(selectInterval)
	defer ticker.Stop()
	for {
		s.adjust(ctx, running)
		select {
		case <-s.selection.changed:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// adjust begins the watches that are selected and not there, and has those end that are not selected.
func (s *Source) adjust(ctx context.Context, running *sync.WaitGroup) {
	scopes, allScopes := s.selection.scopes(&s.options)
	resources, allResources := s.resources()
	type place struct {
		resource  schema.GroupVersionResource
		namespace string
	}
	there := map[place]bool{}
	inScope := map[string]bool{}
	for _, scope := range scopes {
		inScope[scope.namespace] = true
	}
	for _, w := range s.all() {
		if w.outdated {
			continue
		}
		r := w.collection.resource
		there[place{r, w.collection.namespace}] = true
		served := slices.Contains(resources, r)
		otherwise := slices.ContainsFunc(resources, func(other schema.GroupVersionResource) bool { return other.GroupResource() == r.GroupResource() })
		switch {
		case !served && otherwise: // in this version nothing more can be read
			s.unselect(ctx, running, w, true)
		case !inScope[w.collection.namespace] && allScopes, !served && allResources && w.knowsNothing():
			s.unselect(ctx, running, w, false)
		default:
			w.leaving.Store(false)
		}
	}
	for _, r := range resources {
		for _, scope := range scopes {
			if !there[place{r, scope.namespace}] {
				s.begin(ctx, running, r, scope)
			}
		}
	}
	if allScopes && allResources {
		s.selection.settled, s.selection.later, s.selection.raises, s.selection.before = true, true, true, nil
	}
}

// begin begins a watch.
func (s *Source) begin(ctx context.Context, running *sync.WaitGroup, resource schema.GroupVersionResource, scope scope) {
	l, w := s.selection, s.newWatch(resource, scope)
	if l.store != nil {
		w.keepIn(l.store)
	}
	otherVersion := func(other *watcher) bool {
		return other.collection.resource.GroupResource() == resource.GroupResource() && other.collection.namespace == scope.namespace
	}
	switch {
	case !l.settled && s.options.HistoryLost, w.follows(l.before), slices.ContainsFunc(s.all(), otherVersion):
		w.state.Gap = delta.GapLost
	case l.later: // what exists in it may be new, and is sent also without snapshots
		w.state.Absent = true
	}
	if l.raises {
		w.state.Raise = &raise{Offset: s.options.Offset.Current()}
	}
	w.health.later = l.later
	level := slog.LevelDebug
	if l.later {
		level = slog.LevelInfo
	}
	w.logger.Log(ctx, level, "it is selected now: watching it")
	s.mu.Lock()
	s.watches = append(slices.Clone(s.watches), w)
	s.mu.Unlock()
	w.start(ctx, running)
}

// unselect has a watch end, at once or when it has caught up, unless it is selected again before.
func (s *Source) unselect(ctx context.Context, running *sync.WaitGroup, w *watcher, atOnce bool) {
	if w.leaving.Store(true); !w.ending.CompareAndSwap(false, true) {
		return
	}
	running.Go(func() {
		defer w.ending.Store(false)
		gone := false
		if !atOnce {
			var ends bool
			if ends, gone = w.catchUp(ctx); !ends {
				return
			}
		}
		w.stop()
		<-w.stopped
		if gone && w.gone(ctx) != nil {
			return // ctx has ended
		}
		if s.end(ctx, w) {
			s.selection.wake()
		}
	})
}

// end ends a watch that runs no more, unless ctx ends first.
func (s *Source) end(ctx context.Context, w *watcher) bool {
	if w.leave(ctx) != nil {
		return false
	}
	w.logger.Info("the watch has ended: it is not selected any more")
	w.handler.Exclusive(func() { s.forget(w) })
	return true
}

// forget removes a watch that has ended. It is called inside the handler's calls.
func (s *Source) forget(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches = slices.DeleteFunc(slices.Clone(s.watches), func(other *watcher) bool { return other == w })
	if w.store != nil {
		s.ended = append(s.ended, w.id)
	}
}

// restoreSelected adds the watches of the last run that may be selected: they go on, and those that are not selected any more end when they
// have caught up.
func (s *Source) restoreSelected(store Store, last map[string]Meta) {
	if s.selection == nil {
		return
	}
	s.selection.store = store
	for _, meta := range last {
		if meta.Source != s.options.Name {
			continue
		}
		resource, err := delta.ParseResource(meta.Resource)
		is := func(w *watcher) bool {
			return w.collection.resource == resource && w.collection.namespace == meta.Namespace
		}
		if err != nil || slices.ContainsFunc(s.watches, is) || !slices.Contains(s.options.named(), resource) && !s.options.covered(resource) {
			continue
		}
		in := scopes(s.options.Namespaces, s.options.FieldSelector)
		if s.options.NamespaceSelector != "" {
			in = []scope{{namespace: meta.Namespace, fieldSelector: s.options.FieldSelector}}
		}
		if n := slices.IndexFunc(in, func(one scope) bool { return one.namespace == meta.Namespace }); n >= 0 && (meta.Namespace != "" || s.options.NamespaceSelector == "") {
			s.watches = append(s.watches, s.newWatch(resource, in[n]))
			s.selection.later = true
		}
	}
}
