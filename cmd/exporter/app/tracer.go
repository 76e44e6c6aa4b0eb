package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/source"
)

// tracePath returns what became of the object that resource, namespace and name name.
const tracePath = "/trace"

// traceTime bounds how long the API server is waited for, how long the dead letters are searched, and how long all logs are.
const traceTime = 5 * time.Second

// Trace is what the running kubeferry knows of one object. Of an object that was deleted, and whose records are delivered, it knows
// LastDelivered only.
type Trace struct {
	Resource  string `json:"resource"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Now is the resource version at the API server; empty if there is no such object. NowError is why that could not be read.
	Now       string              `json:"now,omitempty"`
	NowError  string              `json:"nowError,omitempty"`
	Watches   []source.WatchTrace `json:"watches"`
	Pipelines []PipelineTrace     `json:"pipelines"`
	Notes     []string            `json:"notes,omitempty"`
}

// PipelineTrace is what became of an object in one pipeline.
type PipelineTrace struct {
	Pipeline string `json:"pipeline"`
	Sink     string `json:"sink"`
	// State is "not watched", "not seen", "not sent", "filtered", "waiting", "dead", "delivered" or "unknown".
	State string `json:"state"`
	Why   string `json:"why"`
	// Filter is the one that the object, or a change of it, does not pass. It is evaluated on the object as it is now.
	Filter  *FilterTrace      `json:"filter,omitempty"`
	Waiting *pipeline.Waiting `json:"waiting,omitempty"`
	// Dead counts the object's dead letters in the state directory, and LastDead is the last of them.
	Dead     int        `json:"dead,omitempty"`
	LastDead *DeadTrace `json:"lastDead,omitempty"`
	// LastDelivered is when a record of the object was last delivered; zero if that is not kept.
	LastDelivered time.Time `json:"lastDelivered,omitzero"`
}

// FilterTrace is a filter that does not pass.
type FilterTrace struct {
	Index int `json:"index"`
	shape.FilterAnswer
}

// DeadTrace is a dead letter.
type DeadTrace struct {
	ID     string    `json:"id"`
	Time   time.Time `json:"time"`
	Reason string    `json:"reason"`
	Error  string    `json:"error"`
}

// tracer answers for the running kubeferry.
type tracer struct {
	config    *config.Config
	cluster   *rest.Config
	client    *source.Client
	sources   []*source.Source
	pipelines []*pipeline.Pipeline // in the order of the configuration
	dead      *checkpoint.DeadLetters
	key       []byte
	mu        sync.Mutex // held while a trace is made: one at a time, to bound memory
}

// answer answers a request for a [Trace].
func (t *tracer) answer(r *http.Request) (any, error) {
	if !t.mu.TryLock() {
		return nil, errors.New("another trace is under way")
	}
	defer t.mu.Unlock()
	resource, err := t.resolve(r.Context(), r.FormValue("resource"))
	if err != nil {
		return nil, err
	}
	return t.trace(r.Context(), delta.Ref{Resource: resource, Namespace: r.FormValue("namespace"), Name: r.FormValue("name")})
}

// resolve finds a resource by a name that kubectl takes: first among those that are watched, for which the API server need not be there.
func (t *tracer) resolve(ctx context.Context, name string) (schema.GroupVersionResource, error) {
	var watched []schema.GroupVersionResource
	for _, s := range t.sources {
		watched = append(watched, s.Resources()...)
	}
	for _, s := range t.config.Sources { // those that no pipeline takes from, too
		watched = append(watched, slices.DeleteFunc(slices.Clone(s.Resources), delta.IsWildcard)...)
	}
	found, err := resources.Of(watched).Find([]string{name})
	if err != nil {
		var all *resources.Catalog
		if all, err = resources.Read(ctx, t.cluster); err == nil {
			found, err = all.Find([]string{name})
		}
	}
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%q are several resources: name one", name)
	}
	if err != nil {
		return schema.GroupVersionResource{}, err
	}
	resource := found[0].GroupVersionResource // by a short name in the version that the API server prefers
	same := func(r schema.GroupVersionResource) bool { return r.GroupResource() == resource.GroupResource() }
	if n := slices.IndexFunc(watched, same); n >= 0 && !slices.Contains(watched, resource) {
		resource = watched[n]
	}
	return resource, nil
}

func (t *tracer) trace(ctx context.Context, ref delta.Ref) (*Trace, error) {
	trace := &Trace{Resource: delta.ResourceName(ref.Resource), Namespace: ref.Namespace, Name: ref.Name, Watches: []source.WatchTrace{}}
	limited, cancel := context.WithTimeout(ctx, traceTime)
	defer cancel()
	object, err := t.client.Find(limited, ref)
	switch {
	case err != nil:
		trace.NowError = err.Error()
	case object != nil && object.Namespace() != ref.Namespace:
		return nil, fmt.Errorf("%s are in namespaces: name the object as NAMESPACE/NAME", trace.Resource)
	case object != nil:
		trace.Now = object.ResourceVersion()
	}
	of := map[string]*source.WatchTrace{} // the watch of each source that covers the namespace
	watched := map[string]bool{}          // the sources that have the resource
	for _, s := range t.sources {
		for _, w := range s.Trace(ref) {
			if w.Covers && !w.Known && object != nil {
				selectors, err := s.NotSelected(limited, ref)
				if w.NotSelected = selectors; err != nil {
					trace.Notes = append(trace.Notes, fmt.Sprintf("whether the selectors of source %q select it cannot be read: %v", s.Name(), err))
				}
			}
			if watched[s.Name()] = true; w.Covers {
				trace.Watches = append(trace.Watches, w)
				of[s.Name()] = &w
			}
		}
	}
	waiting := make([]pipeline.Waiting, len(t.pipelines))
	for n, p := range t.pipelines {
		searching, cancel := context.WithTimeout(ctx, traceTime/time.Duration(len(t.pipelines)))
		waiting[n], err = p.Waiting(searching, ref)
		cancel()
		if err != nil {
			return nil, fmt.Errorf("read the log of pipeline %q: %w", p.Name(), err)
		}
	}
	letters, unsearched, err := t.deadLetters(ctx, ref) // after what waits, which may become one
	if err != nil {
		return nil, err
	}
	if unsearched {
		trace.Notes = append(trace.Notes, "there are too many dead letters to search all of them: later ones were not searched")
	}
	for n, p := range t.pipelines {
		one := letters[p.Name()]
		one.Pipeline, one.Sink, one.LastDelivered = p.Name(), p.SinkName(), p.LastDelivered(ref)
		if waiting[n].Total > 0 || waiting[n].Unsearched > 0 {
			one.Waiting = &waiting[n]
		}
		var watch *source.WatchTrace
		leftOut := ""
		for _, name := range t.config.Pipelines[n].Sources {
			if watch = cmp.Or(watch, of[name]); watched[name] {
				leftOut = name
			}
		}
		t.conclude(ctx, &one, trace, watch, leftOut, t.config.Pipelines[n].DeadLetter, p, object)
		trace.Pipelines = append(trace.Pipelines, one)
	}
	return trace, nil
}

// conclude sets the state, and why.
func (t *tracer) conclude(ctx context.Context, one *PipelineTrace, trace *Trace, watch *source.WatchTrace, leftOut, deadSink string, p *pipeline.Pipeline, object *delta.Object) {
	set := func(state, format string, args ...any) { one.State, one.Why = state, fmt.Sprintf(format, args...) }
	switch {
	case one.Waiting != nil && one.Waiting.Total > 0:
		first := one.Waiting.Records[0]
		set("waiting", "%d records, from %s %s on, handed on at %s; behind %s", one.Waiting.Total, first.Type, first.ResourceVersion, pipeline.FormatTime(first.Observed), one.Waiting.Behind)
	case one.Waiting != nil:
		set("unknown", "the log holds more than can be searched: %d changes were not", one.Waiting.Unsearched)
	case one.Dead > 0:
		set("dead", "%d dead letters, the last of %s at %s (%s): %s", one.Dead, one.LastDead.ID, pipeline.FormatTime(one.LastDead.Time), one.LastDead.Reason, one.LastDead.Error)
	case watch == nil && leftOut != "":
		set("not watched", "the namespaces of source %q leave %q out", leftOut, trace.Namespace)
	case watch == nil:
		set("not watched", "none of its sources has %s", trace.Resource)
	case watch.NotSelected != "":
		set("not watched", "source %q: %s does not select it", watch.Watch.Source, watch.NotSelected)
	case !watch.Known && (object != nil || trace.NowError != "") && (watch.Watch.State != source.StateWatching || watch.Watch.Blocked):
		set("not seen", "the watch has not come to it: %v", watchText(watch))
	case !watch.Known && object != nil:
		set("not seen", "the watch is at %s, and has not come to it", watch.Watch.Position)
	case !watch.Known && trace.NowError != "":
		set("unknown", "the watch does not have it, and whether it exists cannot be read: %s", trace.NowError)
	case !watch.Known && !one.LastDelivered.IsZero():
		set("delivered", "there is no such object any more, and nothing of it waits; which of its changes passed is not kept")
	case !watch.Known:
		set("unknown", "there is no such object, and the watch knows none: it never existed, or its DELETED was handed on and settled, which is not kept")
	case slices.Contains(watch.Due, one.Pipeline):
		set("not sent", "the snapshot for the pipeline has not reached it")
	default:
		t.judge(ctx, one, watch, deadSink, p, object)
	}
	if watch != nil && watch.Known && trace.NowError == "" && trace.Now != watch.ResourceVersion {
		one.Why += fmt.Sprintf("; the watch has not come to what is now (%s): %s", cmp.Or(trace.Now, "it is deleted"), watchText(watch))
	}
}

// watchText is the state of a watch in words.
func watchText(w *source.WatchTrace) string {
	text := string(w.Watch.State)
	if w.Watch.Blocked {
		text += ", held back by a full backlog since " + pipeline.FormatTime(w.Watch.BlockedSince)
	}
	if w.Watch.Error != "" {
		text += ": " + w.Watch.Error
	}
	return text
}

// judge decides between filtered and delivered, of an object of which nothing waits and nothing died. Filters on the object decided
// for its last version; what filters on changes did with that change is not kept.
func (t *tracer) judge(ctx context.Context, one *PipelineTrace, watch *source.WatchTrace, deadSink string, p *pipeline.Pipeline, object *delta.Object) {
	has := slices.Contains(watch.Has, one.Pipeline)
	taken := map[delta.Type]bool{}
	for _, kind := range []delta.Type{delta.Added, delta.Modified} {
		if object == nil {
			break
		}
		resource, _ := delta.ParseResource(watch.Watch.Resource) // it was written by ResourceName
		d := &delta.Delta{Type: kind, Resource: resource, Watch: "trace", Object: object, Observed: time.Now()}
		e := p.Shaper().Explain(ctx, d, has, shape.NewRedactor(t.key, t.config.Cluster))
		taken[kind] = e.Taken
		for n, filter := range e.Filters {
			if filter.Evaluated && !filter.Passed {
				one.Filter = &FilterTrace{n, filter}
				break
			}
		}
	}
	switch {
	case !has && one.Filter == nil:
		one.State, one.Why = "filtered", fmt.Sprintf("version %s did not pass the filters, or existed before and was not to be sent; what exists now passes", watch.ResourceVersion)
	case !has:
		one.State, one.Why = "filtered", fmt.Sprintf("version %s does not pass filters[%d]", watch.ResourceVersion, one.Filter.Index)
	case one.Filter != nil && !taken[delta.Added] && !taken[delta.Modified]:
		one.State, one.Why = "filtered", fmt.Sprintf("neither its creation nor a change of it passes filters[%d]", one.Filter.Index)
	case one.Filter == nil && object != nil && !taken[delta.Added] && !taken[delta.Modified]:
		one.State, one.Why = "filtered", "the body of its creation is null, and so is that of a change of it"
	default:
		one.State = "delivered"
		one.Why = fmt.Sprintf("nothing of it waits: what passed the filters up to version %s is delivered; which changes passed is not kept", watch.ResourceVersion)
		if one.LastDelivered.IsZero() {
			one.Why += "; when it was: before this process began to lead, or before those of too many others"
		}
		if one.Filter != nil {
			one.Why += fmt.Sprintf("; of an ADDED and a MODIFIED of it, one does not pass filters[%d]", one.Filter.Index)
		}
		if watch.Unsent {
			one.Why += "; `snapshot: never`: if it existed at the first start, it is sent with its first change"
		}
	}
	if one.State == "delivered" && deadSink != "" {
		one.Why += fmt.Sprintf("; its dead letters, if any, are in sink %q", deadSink)
	}
}

// deadLetters counts the letters of an object, by pipeline.
func (t *tracer) deadLetters(ctx context.Context, ref delta.Ref) (found map[string]PipelineTrace, unsearched bool, err error) {
	quoted, err := json.Marshal(ref.Path())
	if err != nil {
		return nil, false, err
	}
	found = map[string]PipelineTrace{}
	ctx, cancel := context.WithTimeout(ctx, traceTime)
	defer cancel()
	for from := uint64(0); ; {
		letters, err := t.dead.Read(ctx, from, deadLetterChunk)
		if err != nil || len(letters) == 0 {
			return found, false, err
		}
		for _, l := range letters {
			from = l.Seq + 1
			if !bytes.Contains(l.Letter, quoted) { // most of them; decoding takes long
				continue
			}
			letter, err := pipeline.DecodeLetter(l.Letter)
			if err == nil && letter.Record.Key == ref.Path() {
				found[letter.Pipeline] = PipelineTrace{
					Dead: found[letter.Pipeline].Dead + 1, LastDead: &DeadTrace{letter.Record.ID, letter.Last, letter.Reason, letter.Error},
				}
			}
		}
		if ctx.Err() != nil {
			return found, true, nil
		}
	}
}

// RequestTrace returns what the kubeferry that runs on a state directory has of an object.
func RequestTrace(ctx context.Context, stateDir, resource, namespace, name string) (*Trace, error) {
	client := newSocketClient(stateDir)
	defer client.close()
	query := url.Values{"resource": {resource}, "namespace": {namespace}, "name": {name}}
	trace := &Trace{}
	err := client.request(ctx, http.MethodGet, tracePath, query, nil, trace)
	if errors.As(err, new(*net.OpError)) {
		return nil, fmt.Errorf("no kubeferry runs on %s, or it has not begun: %w", stateDir, err)
	}
	return trace, err
}

// SplitObject splits NAMESPACE/NAME; a cluster-scoped object has no namespace.
func SplitObject(object string) (namespace, name string, err error) {
	namespace, name, both := strings.Cut(object, "/")
	if !both {
		namespace, name = "", namespace
	}
	if name == "" || both && namespace == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%q is no object: name it as NAMESPACE/NAME, or NAME if it is in none", object)
	}
	return namespace, name, nil
}
