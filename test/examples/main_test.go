// Package examples_test runs the programs of examples/ against real servers, while everything fails that may fail.
package examples_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/exampleprograms"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// wide is for what takes seconds; only a machine that stands still takes so long.
const wide = 3 * time.Minute

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare, kafkatest.Prepare, natstest.Prepare, programs.Exporter().Build, exampleprograms.Prepare)
	os.Exit(m.Run())
}

// eventually calls condition until it returns no error, for at most wide.
func eventually(t *testing.T, what string, condition func() error) {
	t.Helper()
	deadline := time.Now().Add(wide)
	for {
		begun := time.Now()
		err := condition()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %v", what, wide, err)
		}
		select {
		case <-time.After(min(max(50*time.Millisecond, 2*time.Since(begun)), 2*time.Second)):
		case <-t.Context().Done():
			t.Fatal(fmt.Errorf("%s: %w", what, t.Context().Err()))
		}
	}
}
