package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// change makes a delta of the pod of that name.
func change(t testing.TB, name string, version int) *delta.Delta {
	t.Helper()
	object, err := delta.NewObject(fmt.Appendf(nil,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"shop","uid":"uid-%s","resourceVersion":"%d"},"spec":{}}`, name, name, version))
	if err != nil {
		t.Fatal(err)
	}
	return &delta.Delta{Type: delta.Modified, Resource: pods, Watch: "w", Object: object, Observed: time.Now()}
}

// script is a sink whose every answer a test decides. The faults that it plays no real server produces on demand,
// one record at a time.
type script struct {
	mu     sync.Mutex
	answer func(call int, batch []sinks.Record) error
	calls  int
	// stored are the ids acknowledged, in order of acknowledgement.
	stored []string
	// inFlight are the keys of the calls under way.
	inFlight map[string]bool
	overlaps []string
}

func (s *script) Deliver(_ context.Context, batch []sinks.Record) error {
	s.mu.Lock()
	s.calls++
	call, answer := s.calls, s.answer
	if s.inFlight == nil {
		s.inFlight = map[string]bool{}
	}
	keys := map[string]bool{}
	for _, record := range batch {
		if s.inFlight[record.Key] {
			s.overlaps = append(s.overlaps, record.Key)
		}
		keys[record.Key] = true
	}
	for key := range keys {
		s.inFlight[key] = true
	}
	s.mu.Unlock()

	var err error
	if answer != nil {
		err = answer(call, batch)
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range keys {
		delete(s.inFlight, key)
	}
	for n, err := range sinks.PerRecord(err, len(batch)) {
		if err == nil {
			s.stored = append(s.stored, batch[n].ID)
		}
	}
	return err
}

func (*script) Close(context.Context) error { return nil }

func (s *script) set(answer func(call int, batch []sinks.Record) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = answer
}

func (s *script) storedIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.stored...)
}

// overlapping are the keys that two calls at once had.
func (s *script) overlapping() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.overlaps)
}

// letters collects dead letters.
type letters struct {
	mu    sync.Mutex
	fail  error
	tries int
	got   []Letter
}

func (l *letters) Write(_ context.Context, letters []Letter) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tries++
	if l.fail != nil {
		return 0, l.fail
	}
	for _, letter := range letters {
		letter.Record.Body = bytes.Clone(letter.Record.Body) // it is not ours after this
		l.got = append(l.got, letter)
	}
	return len(letters), nil
}

func (l *letters) ids() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var ids []string
	for _, letter := range l.got {
		ids = append(ids, letter.Record.ID)
	}
	return ids
}

// start runs a pipeline until the test ends.
func start(t testing.TB, sink sinks.Sink, dead DeadLetter, adjust func(*Options)) *Pipeline {
	t.Helper()
	p, stop := launch(sink, dead, adjust)
	t.Cleanup(stop)
	return p
}

// launch runs a pipeline until stop is called, which may be done twice.
func launch(sink sinks.Sink, dead DeadLetter, adjust func(*Options)) (p *Pipeline, stop func()) {
	return launchLogged(sink, dead, slog.DiscardHandler, adjust)
}

func launchLogged(sink sinks.Sink, dead DeadLetter, log slog.Handler, adjust func(*Options)) (p *Pipeline, stop func()) {
	options := Options{
		Options: shape.Options{Name: "test", Cluster: "c", Format: shape.FormatCloudEvents}, MaxBytes: 1 << 20,
		Retry: Retry{Initial: time.Millisecond, Max: 20 * time.Millisecond},
		Sink:  sink, SinkName: "script", DeadLetter: dead,
		Limits: sinks.Limits{MaxRecords: 10, MaxBytes: 1 << 20, Linger: time.Millisecond, Concurrency: 3, Timeout: time.Second},
	}
	if adjust != nil {
		adjust(&options)
	}
	p = New(options, NewMetrics(prometheus.NewRegistry()), slog.New(log))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	return p, func() {
		cancel()
		running.Wait()
	}
}

func drain(t testing.TB, p *Pipeline) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if left := p.Drain(ctx); left != 0 {
		t.Fatalf("%d deltas are left: %+v", left, p.Stats())
	}
	if s := p.Stats(); !s.Balanced() || s.Bytes != 0 || !s.Oldest.IsZero() {
		t.Fatalf("the counts do not balance: %+v", s)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.unloadable) > 0 {
		t.Fatalf("%d may be unloaded", len(p.unloadable))
	}
	if len(p.log.flows)+len(p.log.turns) > 0 || p.log.wanting != nil || p.log.behind > 0 {
		t.Fatalf("flows are left: %+v", p.log)
	}
	if p.budget.failing != 0 || p.budget.stuck != 0 || len(p.log.stopped) > 0 {
		t.Fatalf("%d bytes fail, %d are stuck, %d flows are stopped", p.budget.failing, p.budget.stuck, len(p.log.stopped))
	}
}

func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// Delta is Reserve and Take in one, for an object that passed before.
func (p *Pipeline) Delta(ctx context.Context, d *delta.Delta) error {
	t, err := p.Reserve(ctx, d, true)
	if err == nil {
		p.Take(t)
	}
	return err
}

// Gap is ReserveGap and Take in one.
func (p *Pipeline) Gap(ctx context.Context, g *delta.Gap) error {
	t, err := p.ReserveGap(ctx, g)
	if err == nil {
		p.Take(t)
	}
	return err
}

// Balanced reports whether received + restored = filtered + delivered + dead + waiting.
func (s Stats) Balanced() bool {
	dead := uint64(0)
	for _, n := range s.Dead {
		dead += n
	}
	return s.Received+s.Restored == s.Filtered+s.Delivered+dead+s.Waiting
}

func mustTake(t testing.TB, p *Pipeline, d *delta.Delta) {
	t.Helper()
	if err := p.Delta(t.Context(), d); err != nil {
		t.Fatal(err)
	}
}

// checkOrder reports records of one object that were first stored out of order.
func checkOrder(t testing.TB, ids []string) {
	t.Helper()
	last, seen := map[string]int{}, map[string]bool{}
	for _, id := range ids {
		if seen[id] {
			continue
		}
		seen[id] = true
		parts := strings.Split(id, "/")
		var version int
		if _, err := fmt.Sscan(parts[2], &version); err != nil {
			t.Fatal(err)
		}
		if version <= last[parts[1]] {
			t.Errorf("%s came after version %d", id, last[parts[1]])
		}
		last[parts[1]] = version
	}
}

var errDown = sinks.Transient(sinks.ReasonUnavailable, errors.New("503"))
