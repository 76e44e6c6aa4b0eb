package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

// host stands for a test to the packages that start brokers for tests. What it does not define must not be called.
type host struct {
	testing.TB
	ctx      context.Context // as in a test, which this stands for
	lab      *lab
	dir      string
	cleanups []func()
}

// errHosted is what ends a row where a test would fail.
type errHosted struct{ error }

// hosted runs f as if it were a test.
func (l *lab) hosted(ctx context.Context, f func(h *host) ([]check, error)) (checks []check, err error) {
	h := &host{ctx: ctx, lab: l}
	if h.dir, err = os.MkdirTemp(l.dir, "broker-"); err != nil {
		return nil, err
	}
	defer func() {
		if failure, ok := recover().(errHosted); ok {
			err = errors.Join(failure.error, err)
		}
	}()
	defer func() {
		for _, cleanup := range slices.Backward(h.cleanups) {
			cleanup()
		}
	}()
	return f(h)
}

func (h *host) Helper() {}

func (h *host) Context() context.Context { return h.ctx }

func (h *host) Name() string { return "bench" }

func (h *host) Failed() bool { return false }

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp(h.dir, "")
	if err != nil {
		h.Fatal(err)
	}
	return dir
}

func (h *host) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

func (h *host) Log(args ...any) { h.lab.say("    %s", fmt.Sprint(args...)) }

func (h *host) Logf(format string, args ...any) { h.lab.say("    "+format, args...) }

func (h *host) Error(args ...any) { h.Fatal(args...) }

func (h *host) Errorf(format string, args ...any) { h.Fatalf(format, args...) }

func (h *host) Fatal(args ...any) { panic(errHosted{errors.New(fmt.Sprint(args...))}) }

func (h *host) Fatalf(format string, args ...any) { panic(errHosted{fmt.Errorf(format, args...)}) }
