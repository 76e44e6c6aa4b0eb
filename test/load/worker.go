package load

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// worker owns some of the names; no other worker writes them.
type worker struct {
	client     dynamic.Interface
	progress   *progress
	random     *rand.Rand
	size       int
	operations int
	until      <-chan struct{}  // ends it before its operations are used up; nil never
	turns      <-chan time.Time // to write; nil if it may whenever it likes
	slots      []*slot
	result     Result
}

// slot is one name and what it stands for at the moment.
type slot struct {
	object
	uid      types.UID // empty if there is no such object
	revision int       // never repeats, so that every update is a change
}

func (w *worker) run(ctx context.Context) error {
	for n := 0; n < w.operations && w.next(ctx); n++ {
		s := w.slots[w.random.IntN(len(w.slots))]
		if err := w.step(ctx, s); err != nil {
			return fmt.Errorf("load: %s %s/%s: %w", s.resource.GVR.Resource, s.namespace, s.name, err)
		}
		w.progress.step()
	}
	for _, s := range w.slots {
		if s.uid != "" {
			w.result.Live++
		}
	}
	return nil
}

// next waits for its turn, and is false when it is over.
func (w *worker) next(ctx context.Context) bool {
	if w.turns != nil {
		select {
		case <-w.turns:
		case <-w.until:
		case <-ctx.Done():
		}
	}
	select {
	case <-w.until:
		return false
	default:
		return true // the next request fails if ctx has ended
	}
}

// step does one operation: of four, about three are updates.
func (w *worker) step(ctx context.Context, s *slot) error {
	if s.uid == "" {
		return w.create(ctx, s)
	}
	switch choice := w.random.IntN(100); {
	case choice < 75:
		return w.update(ctx, s)
	case choice < 88:
		return w.delete(ctx, s)
	default:
		if err := w.delete(ctx, s); err != nil {
			return err
		}
		w.result.Recreated++
		return w.create(ctx, s)
	}
}

func (w *worker) create(ctx context.Context, s *slot) error {
	s.revision++
	manifest := &unstructured.Unstructured{Object: s.manifest(s.revision, w.payload())}
	return retry(ctx, func() error {
		created, err := w.resource(s).Create(ctx, manifest, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an attempt before this one did take effect
			created, err = w.resource(s).Get(ctx, s.name, metav1.GetOptions{})
		}
		if err != nil {
			return err
		}
		s.uid = created.GetUID()
		w.result.Created++
		w.result.UIDs = append(w.result.UIDs, string(s.uid))
		return nil
	})
}

// update sends a merge patch: unlike an update it needs no resource version, and sent twice it changes nothing more.
func (w *worker) update(ctx context.Context, s *slot) error {
	s.revision++
	patch, err := json.Marshal(s.resource.body(s.object, s.revision, w.payload()))
	if err != nil {
		return err
	}
	return retry(ctx, func() error {
		_, err := w.resource(s).Patch(ctx, s.name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			w.result.Updated++
		}
		return err
	})
}

func (w *worker) delete(ctx context.Context, s *slot) error {
	return retry(ctx, func() error {
		err := w.resource(s).Delete(ctx, s.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.uid}})
		if err != nil && !apierrors.IsNotFound(err) { // not found: an attempt before this one did take effect
			return err
		}
		s.uid = ""
		w.result.Deleted++
		return nil
	})
}

func (w *worker) resource(s *slot) dynamic.ResourceInterface {
	return w.client.Resource(s.resource.GVR).Namespace(s.namespace)
}

// payload is text that does not compress to nothing.
func (w *worker) payload() string {
	const letters, bits = "abcdefghijklmnopqrstuvwxyz012345", 5 // letters are 1 << bits
	text := make([]byte, max(0, w.size-300))                    // the rest of an object
	var random uint64
	for i := range text {
		if i%(64/bits) == 0 {
			random = w.random.Uint64()
		}
		text[i] = letters[random%(1<<bits)]
		random >>= bits
	}
	return string(text)
}

// retry repeats what failed because the API server is away, restarting or overloaded.
func retry(ctx context.Context, do func() error) error {
	for {
		err := do()
		if err == nil || !transient(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func transient(err error) bool {
	var network net.Error
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &status):
		return status.Status().Code >= 500 || status.Status().Code == 429 ||
			strings.Contains(status.Status().Message, "not yet ready to handle request") // admission, while the API server starts
	default:
		return errors.As(err, &network) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	}
}

// progress counts writes over all workers.
type progress struct {
	done    atomic.Int64
	onWrite func(int64)
}

func newProgress(onWrite func(int64)) *progress { return &progress{onWrite: onWrite} }

func (p *progress) step() {
	n := p.done.Add(1)
	if p.onWrite != nil {
		p.onWrite(n)
	}
}
