package cache

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

func TestDirFillsOnce(t *testing.T) {
	base := t.TempDir()
	var fills atomic.Int32
	fill := func(_ context.Context, dir string) error {
		fills.Add(1)
		return os.WriteFile(filepath.Join(dir, "program"), []byte("x"), 0o600)
	}

	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			dir, err := dirIn(t.Context(), io.Discard, base, "tool/v1", fill)
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "program")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := fills.Load(); got != 1 {
		t.Errorf("filled %d times, want once", got)
	}
}

func TestDirLeavesNothingAfterAFailure(t *testing.T) {
	base := t.TempDir()
	broken := errors.New("broken")
	_, err := dirIn(t.Context(), io.Discard, base, "v1", func(_ context.Context, dir string) error {
		if err := os.WriteFile(filepath.Join(dir, "half"), nil, 0o600); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Fatalf("got %v, want %v", err, broken)
	}
	entries, err := os.ReadDir(base)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.IsDir() {
			t.Errorf("%s was left behind", e.Name())
		}
	}

	// The next one gets its own chance.
	if _, err := dirIn(t.Context(), io.Discard, base, "v1", func(context.Context, string) error { return nil }); err != nil {
		t.Error(err)
	}
}
