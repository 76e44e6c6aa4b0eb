package source

import (
	"context"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Options are what a source watches.
type Options struct {
	Name string
	// Resources are named, or wildcards for all resources of a group that can be watched, but for those of Exclude.
	Resources []schema.GroupVersionResource
	Exclude   []schema.GroupResource
	// Namespaces restricts the watches, by names, and NamespaceSelector by the labels of namespaces, unless it is empty; a source with a
	// restriction takes no cluster-scoped resource.
	Namespaces        delta.Namespaces
	NamespaceSelector string
	// LabelSelector and FieldSelector are applied by the API server.
	LabelSelector, FieldSelector string
	Snapshot                     delta.Snapshot
	// Pipelines are the names of those that deltas are sent to, at most [MaxPipelines]; a [PipelineSet] has a bit for each.
	Pipelines []string
	// Filters identify the filters of each pipeline; nil if they are always the same. If they have changed, a snapshot that a restart
	// interrupts begins anew.
	Filters []string
	// Announcing are those of Pipelines that send a DELETED of an object that passes their filters no longer, or is not selected any more.
	Announcing PipelineSet
	// Retain returns what to retain of an object, so that its next change carries the previous version; nil for nothing.
	// Retain itself is nil if no pipeline needs it.
	Retain func(resource schema.GroupVersionResource, object *delta.Object) *delta.Object
	// RetainFor are the pipelines that need the previous version. Of an object that none of them has, nothing is retained.
	RetainFor PipelineSet
	// Previous bounds what is retained, for several sources together; if it is nil, New makes one without a bound.
	Previous *PreviousVersions
	// RetainPolicy identifies how Retain decides: what was retained under another policy is dropped. The next change of such an object has no
	// previous version.
	RetainPolicy string
	// HistoryLost is set if it is not known what pipelines were sent before this run, beyond what the store has: the state is an older copy, or
	// begins after another one that is lost. Each watch then begins with a gap record and a snapshot.
	HistoryLost bool
	// Check is how often what exists is compared with what is known; 0 for never.
	Check time.Duration
	// Offset makes sequences of resource versions, for all sources together; if it is nil, New makes one that is never raised.
	Offset *Offset
	// Backoff spaces the attempts to open a watch; the zero value is a default that suits an API server.
	Backoff wait.Backoff

	absence   absenceRule   // [defaultAbsenceRule] if it is empty
	discovery time.Duration // groupsInterval if it is 0
	bookmarks time.Duration // withoutBookmarks if it is 0
}

// all are the pipelines of the source.
func (o *Options) all() PipelineSet { return 1<<len(o.Pipelines) - 1 }

// restricted reports whether the source takes no cluster-scoped resource.
func (o *Options) restricted() bool { return o.NamespaceSelector != "" || !o.Namespaces.All() }

// Source is a named set of watches that share scope and selectors.
type Source struct {
	options   Options
	client    *Client
	handler   Handler
	metrics   *Metrics
	logger    *slog.Logger
	selection *selection // decides which watches there are; nil if they stay those that New makes

	mu      sync.Mutex // guards what follows
	watches []*watcher // replaced as a whole
	// ended are the ids of watches that have ended, for the next commit to forget, and forgotten those of the commit in progress.
	ended, forgotten []string
}

// New plans the watches of a source; nothing is opened before Run.
func New(client *Client, options Options, handler Handler, metrics *Metrics, logger *slog.Logger) *Source {
	if options.Backoff == (wait.Backoff{}) {
		options.Backoff = watchBackoff()
	}
	if options.absence == (absenceRule{}) {
		options.absence = defaultAbsenceRule()
	}
	if options.discovery == 0 {
		options.discovery = groupsInterval
	}
	if options.bookmarks == 0 {
		options.bookmarks = withoutBookmarks
	}
	if options.Offset == nil {
		options.Offset = NoOffset()
	}
	if options.Previous == nil {
		options.Previous = NewPreviousVersions(math.MaxInt64)
	}
	s := &Source{options: options, client: client, handler: handler, metrics: metrics, logger: logger}
	if s.selection = newSelection(s); options.NamespaceSelector != "" {
		return s
	}
	for _, resource := range options.named() {
		for _, scope := range scopes(options.Namespaces, options.FieldSelector) {
			s.watches = append(s.watches, s.newWatch(resource, scope))
		}
	}
	return s
}

func (s *Source) newWatch(resource schema.GroupVersionResource, scope scope) *watcher {
	logger := s.logger.With("source", s.options.Name, "resource", delta.ResourceName(resource))
	if scope.namespace != "" {
		logger = logger.With("namespace", scope.namespace)
	}
	c := collection{
		client: s.client, resource: resource, namespace: scope.namespace,
		labelSelector: s.options.LabelSelector, fieldSelector: scope.fieldSelector,
	}
	return &watcher{
		id: watchID(s.options.Name, resource, scope.namespace), collection: c,
		options: &s.options, handler: s.handler, seen: s.metrics.of(resource), logger: logger,
		siblings: func() int { return len(s.all()) },
		wake:     make(chan struct{}, 1), suspect: make(chan struct{}, 1), cut: func() {}, snapshotEnds: map[int]SnapshotStatus{},
		health: &health{
			resource: resource, logger: logger, found: s.options.covered(resource),
			current: starting(s.options.Name, resource, scope.namespace),
		},
		state: &state{known: newKnownSet(false, s.options.Previous), Meta: Meta{
			Source: s.options.Name, Resource: delta.ResourceName(resource), Namespace: scope.namespace, Namespaces: scope.namespaces,
			LabelSelector: s.options.LabelSelector, FieldSelector: s.options.FieldSelector,
			RetainPolicy: s.options.RetainPolicy, Pipelines: s.options.Pipelines, Filters: s.options.Filters,
		}},
	}
}

func starting(source string, resource schema.GroupVersionResource, namespace string) WatchStatus {
	return WatchStatus{Source: source, Resource: delta.ResourceName(resource), Namespace: namespace, State: StateStarting, Since: time.Now()}
}

// Starting returns the statuses to show for a source before New has made it.
func Starting(o Options) (all []WatchStatus) {
	for _, resource := range o.selecting() {
		all = append(all, starting(o.Name, resource, ""))
	}
	if o.NamespaceSelector != "" {
		return all
	}
	for _, resource := range o.named() {
		for _, scope := range scopes(o.Namespaces, "") {
			all = append(all, starting(o.Name, resource, scope.namespace))
		}
	}
	return all
}

// Name returns the name of the source.
func (s *Source) Name() string { return s.options.Name }

// Run watches until ctx ends, and returns when every watch has ended.
func (s *Source) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, w := range s.all() {
		if w.outdated {
			running.Go(func() { s.end(ctx, w) })
			continue
		}
		w.start(ctx, &running)
	}
	if s.selection != nil {
		running.Go(func() { s.selection.run(ctx) })
		running.Go(func() { s.follow(ctx, &running) })
	}
	running.Wait()
}

// all are the watches that there are now.
func (s *Source) all() []*watcher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches
}

// Status returns the status of each watch. The statuses of what selects the watches come first: the watch of namespaces, and the groups of
// wildcards.
func (s *Source) Status() []WatchStatus {
	statuses := s.selection.status()
	for _, w := range s.all() {
		status := w.health.status()
		status.Ending = w.leaving.Load()
		statuses = append(statuses, status)
	}
	return statuses
}

// WatchIDs returns the ids of the source's watches.
func (s *Source) WatchIDs() []string {
	var ids []string
	for _, w := range s.all() {
		ids = append(ids, w.id)
	}
	return ids
}

// Resources returns the resources that are watched now.
func (s *Source) Resources() []schema.GroupVersionResource {
	var found []schema.GroupVersionResource
	for _, w := range s.all() {
		if !slices.Contains(found, w.collection.resource) {
			found = append(found, w.collection.resource)
		}
	}
	return found
}
