package sinks

import (
	"context"
	"fmt"
)

// Serial runs calls that cannot be cancelled, such as writes to a file, one at a time.
type Serial struct {
	what string
	turn chan struct{} // holds one element during a call
}

// NewSerial names the calls for errors: "write to standard output".
func NewSerial(what string) *Serial { return &Serial{what: what, turn: make(chan struct{}, 1)} }

// Do returns the error of call. If ctx ends first, Do returns at once: the result of call is then unknown, and the next
// Do waits for its end.
func (s *Serial) Do(ctx context.Context, call func() error) error {
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("an earlier %s has not ended: %w", s.what, ctx.Err())
	}
	done := make(chan error, 1)
	go func() {
		err := call()
		<-s.turn
		done <- err
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", s.what, ctx.Err())
	}
}
