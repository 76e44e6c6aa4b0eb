package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/sinks"
)

// Explanation is what a pipeline makes of one change, and why. What it holds may be shown: the data of Secrets are
// digests, and what a transform redacts is left out of what comes before.
type Explanation struct {
	// Filters are the answers, in order.
	Filters []FilterAnswer
	// Passes says that the filters let the object pass, Left that they let the version before pass and not this one,
	// which onLeave announces.
	Passes, Left bool
	// Taken says that the change is not filtered out: it is sent, or goes to the dead letter.
	Taken bool
	// DeadLetter says why it goes there; nil if it is sent.
	DeadLetter error
	// Transforms are what each transform did to the object.
	Transforms []TransformStep
	// Difference is what the record says of the version before; nil if nothing.
	Difference *delta.Difference
	// Record is what is sent.
	Record sinks.Record
	// Digested says that the pipeline sends the data of a Secret as they are, and that digests are shown in their place.
	Digested bool
}

// FilterAnswer is what one filter said, and why.
type FilterAnswer struct {
	// Kind is the filter's key in the configuration, Condition what stands behind it.
	Kind, Condition string
	Passed          bool
	// Skipped says that the pipeline does not ask the filter, because the change is decided about. It was asked to be
	// shown.
	Skipped bool
	// OfObject says that the filter is about the object and not about what happened to it.
	OfObject bool
	// Err says why an expression has no result; Passed is what onError makes of it.
	Err error
	// Reads are the values that the filter looks at.
	Reads []FilterRead
	// Note says what the values do not.
	Note string
}

// FilterRead is a value that a filter looks at; of one for changes, one that differs.
type FilterRead struct {
	Place string
	Value any
	// There is false if nothing is in the place.
	There bool
	// Compared says that the value was another before: Old, if WasThere.
	Compared bool
	Old      any
	WasThere bool
}

// TransformStep is what one transform did.
type TransformStep struct {
	// Kind is the transform's key in the configuration.
	Kind          string
	Before, After map[string]any
	Failed        bool
}

// Explain tells what the pipeline would make of a change; nothing is handed over or counted. before says whether the
// filters let the version before pass. mask makes the digests that stand for the data of a Secret where the pipeline
// itself does not redact them: its filters still see the data.
func (p *Pipeline) Explain(ctx context.Context, d *delta.Delta, before bool, mask *Redactor) Explanation {
	if d.Old != nil && !p.options.needsOld() {
		forgotten := *d
		forgotten.Old = nil
		d = &forgotten
	}
	notes := &trace{answers: map[int]FilterAnswer{}, transforms: p.options.Transforms}
	judged := &Change{pipeline: p, observed: d, trace: notes}
	var e Explanation
	e.Passes, e.Taken = p.judgeChange(judged, before)
	e.Left = judged.left

	shown := judged
	if p.options.Redactor == nil && IsSecret(d.Resource) {
		e.Digested = true
		masked := &Pipeline{options: p.options, encoder: p.encoder, logger: p.logger, metrics: p.metrics}
		masked.options.Redactor = mask
		shown = &Change{pipeline: masked, observed: d, trace: notes, left: judged.left, undecided: judged.undecided}
	}
	for i, filter := range p.options.Filters {
		answer, asked := notes.answers[i]
		if !asked {
			passed, err := filter.Pass(judged)
			notes.answered(i, filter, passed, err)
			answer = notes.answers[i]
			answer.Skipped = true
		}
		e.Filters = append(e.Filters, answer)
	}
	p.describe(&e, shown, notes) // before the transforms, which change what the filters saw
	if !e.Taken {
		return e
	}
	shaped, err := shown.shape(ctx)
	e.DeadLetter = err
	if err != nil && err == judged.undecided { //nolint:errorlint // the very same one, which has no place yet
		place := slices.IndexFunc(e.Filters, func(f FilterAnswer) bool { return f.Err == err }) //nolint:errorlint // as above
		e.DeadLetter = fmt.Errorf("filters[%d]: %w", place, err)
	}
	for i := range notes.steps {
		step := &notes.steps[i]
		step.Before, step.After = notes.hidden.maskObject(step.Before), notes.hidden.maskObject(step.After)
	}
	e.Transforms = notes.steps
	e.Difference = shaped.Difference
	record, err := p.encoder.encode(&item{delta: shaped})
	if err != nil && e.DeadLetter == nil {
		e.DeadLetter = err
	}
	e.Record = record
	return e
}

// describe adds to the answers what the filters are and what they look at.
func (p *Pipeline) describe(e *Explanation, c *Change, notes *trace) {
	in := hiddenInput{Change: c}
	for to, read := range map[*map[string]any]func() (map[string]any, error){&in.object: c.Object, &in.old: c.OldObject} {
		object, err := read()
		if err != nil || object == nil {
			continue
		}
		for _, transform := range p.options.Transforms {
			notes.hidden.add(transform, object)
		}
		*to = copyOf(object)
		hide(p.options.Transforms, *to)
	}
	for i := range e.Filters {
		answer := &e.Filters[i]
		switch filter := p.options.Filters[i].(type) {
		case TypesFilter:
			answer.Kind, answer.Condition = "types", joined(filter)
			answer.Reads = []FilterRead{{Place: "type", Value: c.Type(), There: true}}
		case NamespacesFilter:
			answer.Kind, answer.Condition = "namespaces", namespacesText(delta.Namespaces(filter))
			namespace := c.observed.Object.Namespace()
			answer.Reads = []FilterRead{{Place: "namespace", Value: namespace, There: namespace != ""}}
			if namespace == "" {
				answer.Reads, answer.Note = nil, "the object is in no namespace"
			}
		case ExprFilter:
			answer.Kind, answer.Condition = "expr", filter.program.String()
			answer.Reads = exprReads(filter, in)
			if answer.Err != nil {
				answer.Note = "onError: " + string(filter.onError)
			}
		case ChangedFilter:
			answer.Kind = "changed"
			paths := make([]string, len(filter.list))
			for n, path := range filter.list {
				paths[n] = path.String()
			}
			answer.Condition = strings.Join(paths, ", ")
			answer.Reads, answer.Note = changedReads(filter, in)
		default:
			answer.Kind = fmt.Sprintf("%T", filter)
		}
		for n := range answer.Reads {
			read := &answer.Reads[n]
			read.Value, read.Old = notes.hidden.mask(read.Value), notes.hidden.mask(read.Old)
		}
	}
}

// hiddenInput is a change without what its transforms will redact.
type hiddenInput struct {
	*Change
	object, old map[string]any // nil if there is none, or it cannot be read
}

func (in hiddenInput) Object() (map[string]any, error)    { return in.object, nil }
func (in hiddenInput) OldObject() (map[string]any, error) { return in.old, nil }

func exprReads(filter ExprFilter, in hiddenInput) []FilterRead {
	var reads []FilterRead
	for _, place := range filter.program.Reads() {
		value, there, err := place.In(in)
		if err != nil {
			return nil // what cannot be read goes to the dead letter, which says so
		}
		reads = append(reads, FilterRead{Place: place.String(), Value: value, There: there})
	}
	return reads
}

func changedReads(filter ChangedFilter, in hiddenInput) (reads []FilterRead, note string) {
	c := in.Change
	if c.observed.Type != delta.Modified {
		return nil, "only a MODIFIED is compared"
	}
	object, err := c.Object()
	if err != nil {
		return nil, ""
	}
	old, err := c.OldObject()
	if err != nil || old == nil {
		return nil, "the version before is not known"
	}
	seen := map[string]bool{}
	for _, path := range filter.list {
		for _, d := range path.Differences(old, object) {
			place := d.Path.String()
			if !seen[place] { // paths may overlap
				reads = append(reads, FilterRead{
					Place: place, Compared: true, There: d.IsThere, WasThere: d.WasThere, Value: valueAt(in.object, d.Path), Old: valueAt(in.old, d.Path),
				})
			}
			seen[place] = true
		}
	}
	if len(reads) == 0 {
		note = "nothing there differs from the version before"
	}
	return reads, note
}

// valueAt is what is in a place; the mark if it is inside of what is hidden.
func valueAt(object map[string]any, place fieldpath.Path) any {
	if found := place.Places(object); len(found) == 1 {
		return found[0].Value
	}
	for n := place.Len() - 1; n > 0; n-- {
		if found := place.Head(n).Places(object); len(found) == 1 && found[0].Value == hiddenText {
			return hiddenText
		}
	}
	return nil
}

func joined[T ~string](list []T) string {
	texts := make([]string, len(list))
	for i, text := range list {
		texts[i] = string(text)
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
