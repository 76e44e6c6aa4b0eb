package source

import (
	"context"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// WatchTrace is the state of an object in one watch, for `kubeferry trace`.
type WatchTrace struct {
	Watch WatchStatus `json:"watch"`
	// Covers is false if the watch leaves the object's namespace out. Then nothing that follows is set.
	Covers bool `json:"covers"`
	// Known is set if the object exists at the position, in the version ResourceVersion.
	Known           bool   `json:"known"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	UID             string `json:"uid,omitempty"`
	// Has are the pipelines whose filters let that version pass, and Due those whose snapshot has not reached the object.
	Has []string `json:"has,omitempty"`
	Due []string `json:"due,omitempty"`
	// NotSelected are the selectors, if the object exists and they do not select it.
	NotSelected string `json:"notSelected,omitempty"`
	// Unsent is set if the source has `snapshot: never`: what existed at the first start was not sent.
	Unsent bool `json:"unsent,omitempty"`
}

// Trace returns the state of an object in each watch of its resource; nil if the source has no such watch.
func (s *Source) Trace(ref delta.Ref) (traces []WatchTrace) {
	for _, w := range s.all() {
		if w.collection.resource != ref.Resource {
			continue
		}
		t := WatchTrace{Watch: w.health.status(), Covers: w.selects(ref.Namespace)}
		if t.Covers {
			t.Unsent = s.options.Snapshot == delta.SnapshotNever
			w.handler.Exclusive(func() {
				known, ok := w.known().find(keyOfKnown(&delta.Known{Namespace: ref.Namespace, Name: ref.Name}))
				if !ok {
					return
				}
				t.Known, t.ResourceVersion, t.UID = true, known.version.ResourceVersion(), string(known.version.UID())
				for n, pipeline := range s.options.Pipelines {
					if !known.filtered.Has(n) {
						t.Has = append(t.Has, pipeline)
					}
					if known.due.Has(n) {
						t.Due = append(t.Due, pipeline)
					}
				}
			})
		}
		traces = append(traces, t)
	}
	return traces
}

// Find returns an object as the API server has it now, with the right to list it; nil if there is none.
func (c *Client) Find(ctx context.Context, ref delta.Ref) (*delta.Object, error) {
	return (&collection{client: c, resource: ref.Resource, namespace: ref.Namespace}).find(ctx, ref.Name)
}

// find returns the object of a name, if the selectors select it.
func (c *collection) find(ctx context.Context, name string) (*delta.Object, error) {
	narrowed := *c
	narrowed.fieldSelector = strings.Trim(c.fieldSelector+","+fields.OneTermEqualSelector("metadata.name", name).String(), ",")
	p, err := narrowed.list(ctx, metav1.ListOptions{Limit: 1})
	if err != nil || len(p.objects) == 0 {
		return nil, err
	}
	return p.objects[0], nil
}

// NotSelected returns the selectors of the source if they do not select an object that exists, and otherwise an empty string.
func (s *Source) NotSelected(ctx context.Context, ref delta.Ref) (string, error) {
	c := collection{
		client: s.client, resource: ref.Resource, namespace: ref.Namespace,
		labelSelector: s.options.LabelSelector, fieldSelector: s.options.FieldSelector,
	}
	if c.selectors() == "" {
		return "", nil
	}
	object, err := c.find(ctx, ref.Name)
	if err != nil || object != nil {
		return "", err
	}
	return c.selectors(), nil
}
