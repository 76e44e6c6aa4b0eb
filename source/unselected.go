package source

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	left, there := map[entryKey]bool{}, 0
	for namespace := range namespaces {
		existing, err := l.existing(ctx, namespace)
		if apierrors.IsForbidden(err) {
			l.logger.Warn("whether objects that are not selected any more were deleted cannot be read; they count as not deleted", "err", err)
		} else if err != nil {
			return err
		}
		for entry := range l.known().unseen {
			if namespace == "" || entry.namespace.Value() == namespace {
				left[entry] = err != nil || existing[entry]
			}
		}
	}
	if len(left) == 0 {
		return nil
	}
	// A kill leaves open which of the DELETEDs were sent. So they are due again: if the next run does not select them either, it sends
	// their DELETED once more; if it selects them, a snapshot.
	hashed, err := l.hashedNames(ctx, l.known().isUnseen)
	if err != nil {
		return err
	}
	l.handler.Update(func() {
		l.known().makeDue(l.known().unseen, func(old knownObject) PipelineSet { return l.options.all() &^ old.filtered }, hashed)
	})
	if err := l.handler.Commit(ctx); err != nil {
		return err
	}
	err = l.eachUnseen(ctx, func(key objectKey, old knownObject) error {
		send := l.emitInferredDelete
		if left[l.known().entryOf(key)] {
			send = l.emitLeft
			there++
		}
		return send(ctx, key, old, versionNumber(resourceVersion))
	})
	if err != nil {
		return err
	}
	l.logger.Warn("the configuration was edited: objects that were known are not selected any more", "deleted", len(left)-there, "stillThere", there)
	return nil
}

// existing returns those of the known objects that a state did not hold which exist, in a namespace or in the cluster.
func (l *follower) existing(ctx context.Context, namespace string) (map[entryKey]bool, error) {
	all := collection{client: l.collection.client, resource: l.collection.resource, namespace: namespace, metadataOnly: true}
	found := map[entryKey]bool{}
	options := metav1.ListOptions{Limit: pageSize}
	for {
		p, err := all.list(ctx, options)
		if err != nil {
			return nil, err
		}
		for _, object := range p.objects {
			version := object.Version()
			old, known := l.known().find(keyOf(object))
			if known && l.known().isUnseen(old) {
				found[l.known().entryOf(keyOf(object).own())] = old.version.SameObject(&version)
			}
		}
		if p.next == "" {
			return found, nil
		}
		options = metav1.ListOptions{Limit: p.limit, Continue: p.next}
	}
}
