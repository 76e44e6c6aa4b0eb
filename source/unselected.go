package source

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// settleUnselected handles the known objects that a state did not hold, after the configuration was edited: they were
// deleted, or are only not selected any more. The metadata of what exists now, read without selectors, shows which. The
// resource version is that of the state: what the watch reports behind it comes later.
func (l *follower) settleUnselected(ctx context.Context, resourceVersion string) error {
	l.mu.Lock()
	defer l.unlock()
	namespaces := map[string]bool{}
	for key := range l.known().unseen {
		if l.collection.namespace == "" {
			namespaces[""] = true
			break
		}
		namespaces[key.namespace.Value()] = true
	}
	left, there := map[objectKey]bool{}, 0
	for namespace := range namespaces {
		existing, err := l.existing(ctx, namespace)
		if apierrors.IsForbidden(err) {
			l.logger.Warn("whether objects that are not selected any more were deleted cannot be read; they count as not deleted", "err", err)
		} else if err != nil {
			return err
		}
		for key, old := range l.known().unseen {
			if namespace == "" || key.namespace.Value() == namespace {
				left[key] = err != nil || existing[key] == old.version.UID()
			}
		}
	}
	if len(left) == 0 {
		return nil
	}
	// A kill leaves open which of the DELETEDs were sent. So they are due again: if the next run does not select them either, it sends
	// their DELETED once more; if it selects them, a snapshot.
	l.handler.Update(func() {
		for key, old := range l.known().unseen {
			old.due |= l.options.all() &^ old.filtered
			l.known().review(key, old.views, nil)
		}
	})
	if err := l.handler.Commit(ctx); err != nil {
		return err
	}
	for key, old := range l.known().unseen {
		send := l.emitInferredDelete
		if left[key] {
			send = l.emitLeft
			there++
		}
		if err := send(ctx, key, old, versionNumber(resourceVersion)); err != nil {
			return err
		}
	}
	l.logger.Warn("the configuration was edited: objects that were known are not selected any more", "deleted", len(left)-there, "stillThere", there)
	return nil
}

// existing returns the uids of all objects of a namespace, or of the cluster.
func (l *follower) existing(ctx context.Context, namespace string) (map[objectKey]types.UID, error) {
	all := collection{client: l.collection.client, resource: l.collection.resource, namespace: namespace, metadataOnly: true}
	found := map[objectKey]types.UID{}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		p, err := all.list(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, object := range p.objects {
			found[keyOf(object).own()] = object.UID()
		}
		if p.next == "" {
			return found, nil
		}
		options = metav1.ListOptions{Limit: p.limit, Continue: p.next}
	}
}
