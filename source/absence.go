package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file decides when a resource that discovery does not have any more is gone, and its objects with it. Discovery alone proves little: in an
// upgrade one of several API servers may not serve a resource that the others serve, and an aggregated API leaves discovery while its
// APIService is replaced.

// absenceRule is what discovery must have said of a built-in resource before it is gone.
type absenceRule struct {
	answers int           // each on a connection of its own, and none that has the resource
	span    time.Duration // from the first to the last
}

// defaultAbsenceRule outlasts the API servers of an upgrade that is rolled out: while two of them differ, half of the answers have the resource.
func defaultAbsenceRule() absenceRule { return absenceRule{answers: 10, span: 2 * time.Minute} }

// absence is how often discovery has not had a resource, since it had it last.
type absence struct {
	since   time.Time // zero if it has it
	answers int
}

// errAway is returned for a resource of which something is known, and that discovery does not have: no deletion is inferred from that.
var errAway = errors.New("the API server does not serve the resource any more")

// lookUp reads discovery. Its error wraps [ErrMissing] if nothing is known of the resource, or if it is gone; see isGone.
func (w *watcher) lookUp(ctx context.Context) (resolved, error) {
	client := w.collection.client
	if !w.absence.since.IsZero() {
		client = client.onNewConnections()
	}
	found, err := client.resolve(ctx, w.collection.resource)
	switch {
	case err == nil && w.options.restricted() && !found.namespaced:
		return found, ErrScope
	case err == nil:
		w.absence = absence{}
		return found, w.noteDefined(ctx)
	case !w.knowsSomething():
		w.noteAbsent(err)
		return found, err
	case !errors.Is(err, ErrMissing):
		return found, err
	case !isGone(err):
		return found, fmt.Errorf("%w: %s", errAway, err.Error()) // not wrapped: it is not missing
	case BuiltIn(w.collection.resource.Group):
		return found, w.confirm(err)
	case !w.state.Defined:
		return found, fmt.Errorf("%w: no CustomResourceDefinition had defined it. So it belongs to an aggregated API, which may come back together with its objects", errAway)
	}
	return found, err // the CRDs were read from etcd: the one that had defined it is deleted, and its objects with it
}

// confirm returns an error that wraps [ErrMissing] once discovery has said often enough that a resource does not exist.
func (w *watcher) confirm(err error) error {
	if w.absence.since.IsZero() {
		w.absence.since = time.Now()
	}
	w.absence.answers++
	rule, span := w.options.absence, time.Since(w.absence.since)
	if w.absence.answers >= rule.answers && span >= rule.span {
		return err
	}
	return fmt.Errorf("%w, or one of several API servers does not; if all say so for %v, its objects count as deleted: %s", errAway, rule.span, err.Error())
}

// knowsSomething reports whether deletions would be inferred if the resource were gone.
func (w *watcher) knowsSomething() bool {
	return w.state.Position != "" || w.state.Gap != "" || w.state.Begun || w.state.known.len() > 0
}

// noteDefined notes whether a CustomResourceDefinition defines a resource that is served. Without the right to read that, it stays unknown.
func (w *watcher) noteDefined(ctx context.Context) error {
	if BuiltIn(w.collection.resource.Group) {
		return nil
	}
	defined, err := w.collection.client.hasCRD(ctx, w.collection.resource.GroupResource())
	switch {
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("look for the CustomResourceDefinition of %s: %w", delta.ResourceName(w.collection.resource), err)
	case defined == w.state.Defined:
		return nil
	}
	w.mu.Lock()
	defer w.unlock()
	w.handler.Update(func() { w.state.Defined, w.state.changed = defined, true })
	return nil
}
