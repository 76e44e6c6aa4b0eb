package source

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/watch"
)

// stream is a watch.Interface whose events come from a function.
type stream struct {
	events chan watch.Event
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// newStream runs produce in a goroutine. Its events are handed over one by one: when send returns true the
// receiver has taken the event. send returns false once the stream was stopped.
func newStream(ctx context.Context, produce func(ctx context.Context, send func(watch.Event) bool)) *stream {
	ctx, cancel := context.WithCancel(ctx)
	s := &stream{events: make(chan watch.Event), cancel: cancel}
	send := func(event watch.Event) bool {
		select {
		case s.events <- event:
			return true
		case <-ctx.Done():
			return false
		}
	}
	s.done.Go(func() {
		defer close(s.events)
		produce(ctx, send)
	})
	return s
}

// Stop ends the stream and returns when its goroutine has.
func (s *stream) Stop() {
	s.cancel()
	s.done.Wait()
}

// ResultChan implements watch.Interface.
func (s *stream) ResultChan() <-chan watch.Event { return s.events }
