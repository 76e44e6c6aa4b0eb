package main

import (
	"context"
	"io"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare, programs.Exporter().Build, programs.Floor().Build)
	os.Exit(m.Run())
}

// TestRatios is the smoke form of the benchmark: a ratio that is twice its target, measured in small, is a gross regression.
// The CPU time of starting, which does not count among 60,000 objects, is taken off among 10,000. No time is judged.
func TestRatios(t *testing.T) {
	const size = 10_000
	ctx := t.Context()
	l, err := newLab(ctx, options{pairs: 3, scale: size / 60_000.0}, testLog{t})
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	n, err := l.loadEvents(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n != size {
		t.Fatalf("got %d Events, want %d", n, size)
	}
	starting := l.starting(ctx, t)
	ferry := l.exporterSide("kubeferry", n, events())
	of, err := l.paired(ctx, l.floorSide(n, eventsPath), side{name: ferry.name, run: func(ctx context.Context) (sample, error) {
		s, err := ferry.run(ctx)
		s.CPU -= starting
		return s, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range of.b {
		if s.Records != int64(n) {
			t.Errorf("kubeferry sent %d records, want %d", s.Records, n)
		}
	}
	if ratio, bound := of.ratio(cpuEach), 3*eventsTarget; ratio > bound || ratio <= 0 {
		t.Errorf("kubeferry takes %.2f × the CPU time of the floor, more than %.1f ×, three times the target", ratio, bound)
	}
	if got, bound := median(each(of.b, peak)), 2.0*eventsMemory; got > bound {
		t.Errorf("kubeferry takes %.0f MiB, more than %.0f, twice the target", got, bound)
	}
}

// starting is the CPU time of kubeferry that finds nothing.
func (l *lab) starting(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	if err := l.namespace(ctx, "empty"); err != nil {
		t.Fatal(err)
	}
	var took []time.Duration
	for range l.pairs {
		s, err := l.startExporter(exporter{resources: []string{"v1/events"}, namespace: "empty"})
		if err != nil {
			t.Fatal(err)
		}
		defer s.stop()
		if err := s.waitReady(ctx); err != nil {
			t.Fatal(err)
		}
		u, err := s.usage()
		if err != nil {
			t.Fatal(err)
		}
		s.stop()
		took = append(took, u.CPU)
	}
	slices.Sort(took)
	return took[len(took)/2]
}

type testLog struct{ testing.TB }

func (l testLog) Write(text []byte) (int, error) {
	l.Log(string(text))
	return len(text), nil
}

func TestUsageCountsWhatAProcessDoes(t *testing.T) {
	before, err := readUsage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for n, sum := 0, 0; ; n++ { // work until the kernel has counted 50 ms of it
		for i := range 1 << 20 {
			sum += i
		}
		after, err := readUsage(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if after.CPU-before.CPU >= 50*time.Millisecond && sum > 0 {
			break
		}
		if n > 1<<14 {
			t.Fatalf("the CPU time went from %v to %v only", before.CPU, after.CPU)
		}
	}
	if before.Peak < before.RSS || before.RSS < 1<<20 {
		t.Errorf("got %d bytes, %d at most", before.RSS, before.Peak)
	}
}

func TestListNeedsNoServers(t *testing.T) {
	if err := command(t.Context(), []string{"-list", "-run", "^backlog"}, io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	if err := command(t.Context(), []string{"-pairs", "0"}, io.Discard, io.Discard); err == nil {
		t.Error("no pairs: got no error")
	}
}
