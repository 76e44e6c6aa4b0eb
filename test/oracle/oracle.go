package oracle

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// Options are what to watch.
type Options struct {
	// Cluster is the name that kubeferry is configured with, the first part of every id.
	Cluster string
	// Resources to watch.
	Resources []schema.GroupVersionResource
	// Namespaces restricts the watches; empty means the whole cluster.
	Namespaces []string
	// LabelSelector and FieldSelector apply to all watches.
	LabelSelector, FieldSelector string
}

// Oracle records the changes of a cluster. Its methods may be called from any goroutine.
type Oracle struct {
	cluster string
	cancel  context.CancelFunc
	watches []*watcher
	wg      sync.WaitGroup

	mu  sync.Mutex // guards err and the histories of all watches
	err error
}

// Start lists everything once and watches from there on until ctx ends or [Oracle.Stop] is called.
func Start(ctx context.Context, config *rest.Config, opts Options) (*Oracle, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.UserAgent = "kubeferry-test-oracle"
	client, err := metadata.NewForConfig(config) // which is all that is compared
	if err != nil {
		return nil, fmt.Errorf("start oracle: %w", err)
	}
	namespaces := opts.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &Oracle{cluster: opts.Cluster, cancel: cancel}
	for _, resource := range opts.Resources {
		for _, namespace := range namespaces {
			w := &watcher{
				oracle: o, resource: resource, namespace: namespace,
				client:   client.Resource(resource).Namespace(namespace),
				selector: metav1.ListOptions{LabelSelector: opts.LabelSelector, FieldSelector: opts.FieldSelector},
			}
			if err := w.begin(ctx); err != nil {
				cancel()
				return nil, fmt.Errorf("start oracle: %w", err)
			}
			o.watches = append(o.watches, w)
		}
	}
	for _, w := range o.watches {
		o.wg.Go(func() {
			if err := w.run(ctx); err != nil && ctx.Err() == nil {
				o.fail(err)
			}
		})
	}
	return o, nil
}

// Stop ends the watches. What was recorded can still be compared.
func (o *Oracle) Stop() {
	o.cancel()
	o.wg.Wait()
}

// WaitCaughtUp returns when the oracle has recorded everything that happened before the call, provided that nothing
// writes meanwhile. It compares what the watches led to with a fresh list, which cannot show an object that came and
// went unseen: uids, the objects that have existed (load.Result lists them), close that hole.
func (o *Oracle) WaitCaughtUp(ctx context.Context, uids ...string) error {
	// The uids first: an object that was seen but whose deletion was not makes the lists below differ.
	err := o.poll(ctx, func() error {
		o.mu.Lock()
		defer o.mu.Unlock()
		return o.unseen(uids)
	})
	if err != nil {
		return fmt.Errorf("oracle is behind: %w", err)
	}
	for _, w := range o.watches {
		err := o.poll(ctx, func() error {
			state, _, err := w.list(ctx)
			if err != nil {
				return err
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			return w.history.differs(state)
		})
		if err != nil {
			return fmt.Errorf("oracle is behind on %s: %w", w, err)
		}
	}
	return nil
}

// unseen is an error if one of uids was never seen, unless it may have come and gone in a hole. The caller holds o.mu.
func (o *Oracle) unseen(uids []string) error {
	known := map[string]bool{}
	for _, w := range o.watches {
		if len(w.history.holes) > 0 {
			return nil
		}
		for _, s := range w.history.snapshot {
			known[s.uid] = true
		}
		for _, c := range w.history.changes {
			known[c.uid] = true
		}
	}
	n := 0
	for _, uid := range uids {
		if !known[uid] {
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d of %d objects not seen", n, len(uids))
	}
	return nil
}

// poll calls condition until it succeeds. A condition that takes long, as the comparison of a long history does, is
// called less often: else the wait itself would take the time of what it waits for.
func (o *Oracle) poll(ctx context.Context, condition func() error) error {
	for {
		begun := time.Now()
		if err := o.failure(); err != nil {
			return err
		}
		err := condition()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(min(max(20*time.Millisecond, 4*time.Since(begun)), time.Second)):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// Holes is the number of times the oracle lost history and had to list again.
func (o *Oracle) Holes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, w := range o.watches {
		n += len(w.history.holes)
	}
	return n
}

// Changes is the number of changes recorded, without the snapshot.
func (o *Oracle) Changes() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := 0
	for _, w := range o.watches {
		n += len(w.history.changes)
	}
	return n
}

// Passed is the resource version up to which each watch has what happened. A watch of what does not change is behind until a bookmark
// comes.
func (o *Oracle) Passed() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	passed := uint64(math.MaxUint64)
	for _, w := range o.watches {
		last, _ := strconv.ParseUint(w.history.last, 10, 64)
		passed = min(passed, last)
	}
	return passed
}

func (o *Oracle) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = fmt.Errorf("oracle failed: %w", err)
}

func (o *Oracle) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}
