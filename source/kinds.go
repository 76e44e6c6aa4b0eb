package source

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// kindsPerSecond and kindsAtOnce are the rate and the burst of look-ups in discovery.
	kindsPerSecond = 2
	kindsAtOnce    = 40
	// maxAbsent bounds the kinds that are known not to exist; each is looked up again after absentFor.
	maxAbsent = 1000
	absentFor = 30 * time.Second
)

// Kinds finds the resources of kinds that Events name. Whoever may create Events can name any kind, as often as they like: so
// the rate of it is bounded, and a kind that does not exist is not looked for again at once.
type Kinds struct {
	client  *Client
	limiter flowcontrol.RateLimiter
	absent  *cache.LRUExpireCache
}

// NewKinds makes Kinds that use a client.
func NewKinds(client *Client) *Kinds {
	return &Kinds{client, flowcontrol.NewTokenBucketRateLimiter(kindsPerSecond, kindsAtOnce), cache.NewLRUExpireCache(maxAbsent)}
}

// ResourceOf returns the resource of a kind, in the first version in which discovery lists it, and whether its objects
// have namespaces. The error wraps [ErrMissing] if there is no such resource that can be watched.
func (k *Kinds) ResourceOf(ctx context.Context, kind schema.GroupKind) (gvr schema.GroupVersionResource, namespaced bool, err error) {
	if err := k.limiter.Wait(ctx); err != nil {
		return gvr, false, err
	}
	if missing, ok := k.absent.Get(kind); ok {
		return gvr, false, missing.(error)
	}
	gvr, namespaced, err = k.client.resourceOf(ctx, kind)
	if errors.Is(err, ErrMissing) {
		k.absent.Add(kind, err, absentFor)
	}
	return gvr, namespaced, err
}

// resourceOf reads discovery. A RESTMapper of client-go does the same, but links all of k8s.io/api, 20 MB of program.
func (c *Client) resourceOf(ctx context.Context, kind schema.GroupKind) (gvr schema.GroupVersionResource, namespaced bool, err error) {
	served, failed, err := c.Served(ctx, kind.Group)
	if err != nil {
		return gvr, false, err
	}
	for _, found := range served {
		if found.Kind == kind.Kind {
			return found.GroupVersionResource, found.Namespaced, nil
		}
	}
	if len(failed) > 0 {
		return gvr, false, fmt.Errorf("discovery of %v cannot be read", failed)
	}
	return gvr, false, fmt.Errorf("%w of the kind %s", ErrMissing, kind)
}
