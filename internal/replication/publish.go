package replication

import (
	"cmp"
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// This file has what beside the election writes the Lease, or looks for what it wrote.

// beginUpdate waits until no other update is under way: one beside another would get a conflict, and deliveries wait for the next renewal.
func (l *Lease) beginUpdate(ctx context.Context) error {
	select {
	case l.writing <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (l *Lease) endUpdate() { <-l.writing }

// Publish renews the Lease with where the leader serves standbys, and with what it claims by now. Deliveries wait for the claim
// ([Lease.Left]), and standbys for the endpoint. If it fails, the next renewal writes both.
func (l *Lease) Publish(ctx context.Context, e Endpoint) error {
	l.mu.Lock()
	l.endpoint = e
	l.mu.Unlock()
	return l.renew(ctx, func() bool { return true })
}

// PublishOffset renews the Lease at once unless it names the offset that this replica has by now: deliveries wait for that.
func (l *Lease) PublishOffset(ctx context.Context) error {
	return l.renew(ctx, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.options.Offset() > l.publishedOffset
	})
}

// renew renews the Lease if, once no other update is under way, that is still needed. An update that ctx cancels may be applied all the same:
// then the next renewal is a conflict, and the election reads the Lease and renews it.
func (l *Lease) renew(ctx context.Context, needed func() bool) error {
	if err := l.beginUpdate(ctx); err != nil {
		return err
	}
	defer l.endUpdate()
	if !needed() {
		return nil
	}
	l.mu.Lock()
	held := holder(l.seen) == l.options.Identity
	l.mu.Unlock()
	if !held {
		return errors.New("the Lease is not held")
	}
	return l.hold(ctx)
}

// releaseRetry is the pause before another try to give the Lease up.
const releaseRetry = 300 * time.Millisecond

// Release gives the Lease up. Nothing may be handed over any more, and the election must have ended. It is tried until ctx ends: else the
// next leader waits for the end of the Lease.
func (l *Lease) Release(ctx context.Context) error {
	for {
		now := metav1.NewMicroTime(l.options.Now())
		claim := l.options.Claim()
		l.mu.Lock()
		lease, leading, err := l.seen.DeepCopy(), l.status.Leading, l.status.Err
		written, term := l.written(claim, l.status.Term), l.status.Term
		l.renewed = time.Time{}
		l.mu.Unlock()
		if !leading || lease == nil || err != nil {
			return err
		}
		found := readAnnotations(lease, now.Time)
		r := leaseAnnotations{
			cluster: l.options.Cluster, clusterUID: cmp.Or(l.options.ClusterUID, found.clusterUID), claim: written, term: term, released: term,
			offset: max(found.offset, l.options.Offset()),
		}
		nobody, second := "", int32(1)
		lease.Spec = coordinationv1.LeaseSpec{ // as the controllers of Kubernetes give one up
			HolderIdentity: &nobody, LeaseDurationSeconds: &second, RenewTime: &now, AcquireTime: &now, LeaseTransitions: lease.Spec.LeaseTransitions,
		}
		r.write(lease)
		_, err = l.options.Client.Update(ctx, lease)
		if apierrors.IsConflict(err) {
			if err = l.Read(ctx); err == nil {
				continue
			}
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || l.Status().Err != nil {
			return err
		}
		select {
		case <-time.After(releaseRetry):
		case <-ctx.Done():
			return err
		}
	}
}
