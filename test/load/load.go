// Package load changes objects in a cluster: it creates, updates, deletes, and deletes and creates again under the same
// name, with bounded numbers and reproducibly from a seed. It needs no controllers.
package load

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// Options bound the load. The zero values of all but Resources and Namespaces have defaults.
type Options struct {
	Resources  []Resource
	Namespaces []string
	// Objects is the number of names; they are spread over resources and namespaces. 40 if 0.
	Objects int
	// Operations is the number of writes; a deletion with a creation under the same name counts as one. 10 × Objects
	// if 0, and without limit if there is an Until.
	Operations int
	// Until, if not nil, ends the load when it is closed.
	Until <-chan struct{}
	// Rate is how many writes per second there are at most; as many as the server takes if 0.
	Rate int
	// Concurrency is the number of workers. Each name belongs to one of them. 4 if 0.
	Concurrency int
	// Seed decides what happens to each name, and in which order. With the same options it is the same each time.
	Seed uint64
	// Prefix of all names; "load" if empty. Loads that run at the same time need different ones.
	Prefix string
	// Size is about the size of an object in bytes, without what the API server adds. 1024 if 0.
	Size int
	// OnWrite, if set, is called after every write, by several goroutines; tests cause faults from here.
	OnWrite func(done int64)
}

func (o Options) withDefaults() Options {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&o.Objects, 40)
	if o.Until == nil {
		set(&o.Operations, 10*o.Objects)
	} else {
		set(&o.Operations, math.MaxInt)
	}
	set(&o.Concurrency, 4)
	set(&o.Size, 1024)
	if o.Prefix == "" {
		o.Prefix = "load"
	}
	return o
}

// Result is what a load has done.
type Result struct {
	Created, Updated, Deleted int // writes that took effect; a recreation counts under Created and Deleted
	Recreated                 int
	Live                      int      // objects that exist at the end
	UIDs                      []string // of every object that ever existed
}

// Run writes until the operations are used up. Writes that fail because the API server is away are repeated until ctx
// ends; a repeated write has no effect of its own.
func Run(ctx context.Context, config *rest.Config, opts Options) (*Result, error) {
	if len(opts.Resources) == 0 || len(opts.Namespaces) == 0 {
		return nil, errors.New("load: no resources or no namespaces")
	}
	opts = opts.withDefaults()
	config = rest.CopyConfig(config)
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	var wg sync.WaitGroup
	progress := newProgress(opts.OnWrite)
	var turns <-chan time.Time
	if opts.Rate > 0 {
		ticker := time.NewTicker(time.Second / time.Duration(opts.Rate))
		defer ticker.Stop()
		turns = ticker.C
	}
	workers := make([]*worker, min(opts.Concurrency, opts.Objects))
	errs := make([]error, len(workers))
	for i := range workers {
		w := &worker{
			client: client, progress: progress, size: opts.Size, until: opts.Until, turns: turns,
			random:     rand.New(rand.NewPCG(opts.Seed, uint64(i))),
			operations: share(opts.Operations, len(workers), i),
		}
		for n := i; n < opts.Objects; n += len(workers) {
			w.slots = append(w.slots, &slot{object: opts.object(n)})
		}
		workers[i] = w
		wg.Go(func() {
			if errs[i] = w.run(ctx); errs[i] != nil {
				cancel() // one failure is enough
			}
		})
	}
	wg.Wait()

	result := &Result{}
	for _, w := range workers {
		result.add(w.result)
	}
	return result, errors.Join(errs...)
}

// object is the n-th name: resources alternate first, then namespaces.
func (o Options) object(n int) object {
	resource := o.Resources[n%len(o.Resources)]
	namespace := o.Namespaces[n/len(o.Resources)%len(o.Namespaces)]
	return object{resource: resource, namespace: namespace, name: fmt.Sprintf("%s-%05d", o.Prefix, n)}
}

// share is the i-th of n nearly equal parts of total.
func share(total, n, i int) int {
	part := total / n
	if i < total%n {
		part++
	}
	return part
}

func (r *Result) add(other Result) {
	r.Created += other.Created
	r.Updated += other.Updated
	r.Deleted += other.Deleted
	r.Recreated += other.Recreated
	r.Live += other.Live
	r.UIDs = append(r.UIDs, other.UIDs...)
}
