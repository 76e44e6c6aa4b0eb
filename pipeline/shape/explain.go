package shape

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/sinks"
)

// Explanation is what a pipeline makes of one change, and why. What it holds may be shown: the data of Secrets are
// digests, and what a transform redacts is left out of what comes before.
type Explanation struct {
	// Filters are the answers, in order.
	Filters []FilterAnswer
	// Passes is set if the filters let the object pass, Left if they let the previous version pass and not this one,
	// which onLeave announces.
	Passes, Left bool
	// Taken is set if the change is not filtered out: it is sent, or becomes a dead letter.
	Taken bool
	// NoBody is set if the change passes, and is filtered out because the body is null.
	NoBody bool
	// DeadLetter is why it becomes a dead letter; nil if it is sent.
	DeadLetter error
	// Versions are the object before the first transform, and after each one that did not fail.
	Versions []map[string]any
	// Record is what is sent.
	Record sinks.Record
}

// trace records what becomes of one change on its way in. A nil trace records nothing.
type trace struct {
	evaluated []int            // the indexes of the filters that were evaluated, in order
	versions  []map[string]any // the object before the first transform, and after each one that succeeded
}

func (t *trace) filter(index int) {
	if t != nil {
		t.evaluated = append(t.evaluated, index)
	}
}

func (t *trace) version(content map[string]any) {
	if t != nil {
		t.versions = append(t.versions, runtime.DeepCopyJSON(content))
	}
}

// FilterAnswer is the answer of one filter, and why.
type FilterAnswer struct {
	// Kind is the filter's key in the configuration, Condition its value.
	Kind      string `json:"kind"`
	Condition string `json:"condition"`
	// Evaluated is false if the pipeline does not evaluate the filter, because the change is decided.
	Evaluated bool `json:"asked"`
	Passed    bool `json:"passed"`
	// Error is why an expression has no result; Passed is what onError makes of it.
	Error string `json:"error,omitempty"`
	// Reads are the values that the filter looks at.
	Reads []FilterRead `json:"reads,omitempty"`
}

// FilterRead is a value that a filter looks at; for one that compares, a value that differs.
type FilterRead struct {
	Place string `json:"place"`
	// Value and OldValue are JSON, nil where nothing is there. OldValue is set only if Compared is.
	Value    json.RawMessage `json:"value,omitempty"`
	OldValue json.RawMessage `json:"oldValue,omitempty"`
	Compared bool            `json:"compared,omitempty"`
}

// Explain returns what Shape would make of a change. It changes no metric and no limit. before is whether the
// filters let the previous version pass. mask makes the digests that stand for the data of a Secret where the pipeline
// itself does not redact them: its filters still see the data.
func (s *Shaper) Explain(ctx context.Context, d *delta.Delta, before bool, mask *Redactor) Explanation {
	defer s.decoding(d)()
	s = s.uncounted()
	if d.Old != nil && !s.options.needsOld() {
		forgotten := *d
		forgotten.Old = nil
		d = &forgotten
	}
	recorded := &trace{}
	judged := &Change{shaper: s, observed: d, trace: recorded}
	var e Explanation
	e.Passes, e.Taken = s.applyFilters(judged, before)
	e.Left = judged.left

	shown := judged
	if s.options.Redactor == nil && IsSecret(d.Resource) {
		masked := s.uncounted()
		masked.options.Redactor = mask
		shown = &Change{shaper: masked, observed: judged.observed, trace: recorded, left: judged.left, undecided: judged.undecided}
	}
	redacted := shown.redacted() // before the transforms, which change what the filters saw
	for i, filter := range s.options.Filters {
		answer := describe(ctx, filter, judged, redacted)
		answer.Evaluated = slices.Contains(recorded.evaluated, i)
		e.Filters = append(e.Filters, answer)
	}
	if !e.Taken {
		return e
	}
	shaped, err := shown.shape(ctx)
	e.DeadLetter = err
	if shaped == nil {
		e.Taken, e.NoBody = false, true
		return e
	}
	if judged.undecided != nil && shown.unsendable == nil {
		e.DeadLetter = fmt.Errorf("filters[%d]: %w", recorded.evaluated[len(recorded.evaluated)-1], err)
	}
	for i, version := range recorded.versions {
		e.Versions = append(e.Versions, withoutRedacted(s.options.Transforms[i:], version))
	}
	e.Record, _, _ = s.encoder.Encode(nil, &delta.Entry{Delta: shaped}) //nolint:contextcheck // of an expression, whose cost bounds it
	return e
}

// uncounted returns a Shaper that does the same, and counts and logs nothing.
func (s *Shaper) uncounted() *Shaper {
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "unused"})
	return New(s.options, Metrics{FilterErrors: counter, Hits: counter, Misses: counter}, slog.New(slog.DiscardHandler))
}

// redactedInput is a change without what its transforms redact.
type redactedInput struct {
	*Change
	object, old map[string]any // nil if there is none, or it cannot be read
}

func (in redactedInput) Object() (map[string]any, error)    { return in.object, nil }
func (in redactedInput) OldObject() (map[string]any, error) { return in.old, nil }

func (c *Change) redacted() redactedInput {
	in := redactedInput{Change: c}
	if object, err := c.Object(); err == nil {
		in.object = withoutRedacted(c.shaper.options.Transforms, object)
	}
	if old, err := c.OldObject(); err == nil && old != nil {
		in.old = withoutRedacted(c.shaper.options.Transforms, old)
	}
	return in
}

// describe evaluates a filter on a change, and returns the answer with the values that the filter looks at, as far as
// they may be shown.
func describe(ctx context.Context, filter Filter, judged *Change, shown redactedInput) FilterAnswer {
	var answer FilterAnswer
	answer.Passed, _ = filter.Pass(judged)
	switch filter := filter.(type) {
	case TypesFilter:
		answer.Kind, answer.Condition = "types", joined(filter)
		answer.Reads = []FilterRead{{Place: "type", Value: encoded(shown.Type())}}
	case NamespacesFilter:
		answer.Kind, answer.Condition = "namespaces", namespacesText(delta.Namespaces(filter))
		answer.Reads = []FilterRead{{Place: "namespace", Value: encoded(shown.observed.Object.Namespace())}}
	case ExprFilter:
		answer.Kind, answer.Condition = "expr", filter.written
		answer.Reads = exprReads(filter, shown)
		var failed *expr.EvalError
		switch _, err := filter.program.Pass(ctx, judged); { // also where onError hides it
		case errors.As(err, &failed):
			answer.Error = fmt.Sprintf("%v (onError: %s)", err, filter.decision(failed))
		case err != nil:
			answer.Error = err.Error()
		}
	case LimitFilter:
		answer.Kind, answer.Condition = "limit", fmt.Sprintf("%d in %s, per key", filter.count, filter.every) // without its text, in which a secret may stand for a ${…}
		answer.Reads = exprReads(filter.ExprFilter, shown)
		if _, err := filter.program.Eval(ctx, judged); err != nil {
			answer.Error = err.Error()
		}
	case ChangedFilter:
		answer.Kind, answer.Condition = "changed", changedText(filter)
		answer.Reads = changedReads(filter, shown)
	}
	return answer
}

func exprReads(filter ExprFilter, in redactedInput) []FilterRead {
	var reads []FilterRead
	for _, place := range filter.program.Reads() {
		value, there, err := place.In(in)
		if err != nil {
			return nil
		}
		read := FilterRead{Place: place.String()}
		if there {
			read.Value = encoded(value)
		}
		reads = append(reads, read)
	}
	return reads
}

// changedReads returns what differs from the previous version.
func changedReads(filter ChangedFilter, in redactedInput) (reads []FilterRead) {
	object, err := in.Change.Object()
	if err != nil {
		return nil
	}
	old, err := in.Change.OldObject()
	if err != nil || old == nil {
		return nil
	}
	paths, err := filter.paths(in.Change)
	if err != nil {
		return nil
	}
	for _, path := range paths {
		was, is := path.Leaves(old), path.Leaves(object)
		wasShown, isShown := path.Leaves(in.old), path.Leaves(in.object)
		places := maps.Clone(was)
		maps.Copy(places, is)
		for _, place := range slices.Sorted(maps.Keys(places)) {
			before, wasThere := was[place]
			after, isThere := is[place]
			if wasThere == isThere && reflect.DeepEqual(before, after) || slices.ContainsFunc(reads, func(r FilterRead) bool { return r.Place == place }) {
				continue
			}
			reads = append(reads, FilterRead{
				Place: place, Compared: true,
				Value: shownLeaf(isThere, isShown, place), OldValue: shownLeaf(wasThere, wasShown, place),
			})
		}
	}
	return reads
}

// shownLeaf returns the value of a leaf as it may be shown. One that is missing there is part of what is redacted.
func shownLeaf(isThere bool, shown map[string]any, place string) json.RawMessage {
	value, ok := shown[place]
	switch {
	case !isThere:
		return nil
	case !ok:
		return encoded(hiddenText)
	}
	return encoded(value)
}

// encoded returns the JSON of a decoded value.
func encoded(value any) json.RawMessage {
	raw, _ := delta.EncodeJSON(value) // of decoded JSON: it cannot fail
	return raw
}

// joined lists values of the configuration.
func joined[T any](list []T) string {
	texts := make([]string, len(list))
	for i, value := range list {
		texts[i] = fmt.Sprint(value)
	}
	return strings.Join(texts, ", ")
}

func changedText(filter ChangedFilter) string {
	texts := make([]string, len(filter))
	for i, path := range filter {
		texts[i] = cmp.Or(path.String(), "*")
	}
	return strings.Join(texts, ", ")
}

func namespacesText(n delta.Namespaces) string {
	var parts []string
	if len(n.Include) > 0 {
		parts = append(parts, "include "+joined(n.Include))
	}
	if len(n.Exclude) > 0 {
		parts = append(parts, "exclude "+joined(n.Exclude))
	}
	return strings.Join(parts, "; ")
}

// hiddenText stands in an explanation, which people paste into tickets, for a value before it becomes a digest.
const hiddenText = "(hidden: a redact is for it)"

// withoutRedacted returns a copy of a decoded object, with a mark in the place of what the transforms would redact.
// Copies of such a value in other places stay.
func withoutRedacted(transforms []Transform, object map[string]any) map[string]any {
	object = runtime.DeepCopyJSON(object)
	for _, transform := range transforms {
		redact, ok := transform.(RedactTransform)
		if !ok {
			continue
		}
		for _, path := range redact.all() {
			_ = path.Replace(object, func(_ fieldpath.Path, value any) (any, error) { // it cannot fail
				if isDigest(value) {
					return value, nil
				}
				return hiddenText, nil
			})
		}
	}
	return object
}
