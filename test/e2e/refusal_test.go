package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// refused is the API server's answer to a position that is compacted.
var refused = statusOf(apierrors.NewResourceExpired("too old resource version"))

// TestHistoryRefused has a watch refused under a load in each of the ways there are: one gap record, and everything else
// as if nothing had been.
func TestHistoryRefused(t *testing.T) {
	disturbing(t)
	inStream, err := json.Marshal(map[string]any{"type": "ERROR", "object": refused})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		kind load.Resource
		// fault of the watches that are refused; nil if the API server does it, once etcd is compacted.
		fault *proxy.Fault
	}{
		// Today's API servers refuse in the stream; a proxy, or an older one, before it.
		{"as HTTP answer", load.ConfigMaps(), &proxy.Fault{Status: refused}},
		{"inside the stream", load.ConfigMaps(), &proxy.Fault{Instead: string(inStream)}},
		{"by the API server", load.Events(), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config := plane(t).Config()
			namespace := newNamespace(t, "refused")
			gateway, kubeconfig := gatewayOf(t, config)
			hook := webhooktest.Start(t)
			kinds := []load.Resource{tt.kind, load.Deployments()}
			watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
			e := startExporter(t, kubeconfig, fmt.Sprintf("stateDir: %q\n", t.TempDir())+
				hookConfig(fmt.Sprintf("[v1/%s, apps/v1/deployments]", tt.kind.GVR.Resource), fmt.Sprintf("{include: [%s]}", namespace), hook.URL()))
			e.WaitReady()
			running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 22})
			read := hookReader(t, hook, cloudEvents)
			more(t, read, 100)

			before := len(gateway.Requests())
			var met atomic.Bool
			away := make(chan struct{})
			gateway.Use(func(r *http.Request) *proxy.Fault {
				query := r.URL.Query()
				if tt.fault == nil {
					if !isWatch(r.URL.Path, query, tt.kind.GVR.Resource) || met.Swap(true) {
						return nil
					}
					return &proxy.Fault{Hold: away}
				}
				// The history is refused until the state is read, and so is the state at a version of that history.
				switch {
				case path.Base(r.URL.Path) != tt.kind.GVR.Resource || met.Load():
					return nil
				case query.Get("sendInitialEvents") == "true" || query.Get("resourceVersion") == "" && query.Get("watch") == "":
					met.Store(query.Get("limit") != "1") // that one only looks for the version
					return nil
				case query.Get("watch") == "":
					return &proxy.Fault{Status: refused}
				}
				return tt.fault
			})
			gateway.Cut()
			if tt.fault == nil {
				more(t, read, 100) // of the other watch
				if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
					t.Fatal(err)
				}
				close(away)
			}
			eventually(t, wide, "a gap", func() error {
				if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps < 1 {
					return fmt.Errorf("%v gaps", gaps)
				}
				return nil
			})
			more(t, read, 100)
			done := running.End()
			report := expectAll(t, watched, done, read, oracle.CompareOptions{AllowGaps: true})
			t.Log(report)
			expectGaps(t, e, read(), 1)
			// A check reads metadata, where only the version before the last event is refused at first.
			n := slices.DeleteFunc(relists(gateway.Requests()[before:], tt.kind.GVR.Resource), func(r proxy.Request) bool {
				return strings.Contains(r.Accept, "PartialObjectMetadata")
			})
			if len(n) != 1 {
				t.Errorf("the state was read %d times: %+v", len(n), n)
			}
			if n := relists(gateway.Requests()[before:], "deployments"); len(n) != 0 {
				t.Errorf("the other watch read the state: %+v", n)
			}
			expectState(t, config, read(), load.GVRs(kinds), namespace)
		})
	}
}

// TestExtendedCompactedWhileWatching compacts etcd again and again under watches that are open, of Events too, which no watch
// cache stands before. They have the history that is compacted already: no gap, and every change.
func TestExtendedCompactedWhileWatching(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "compacted")
	hook := webhooktest.Start(t)
	kinds := []load.Resource{load.Events(), load.ConfigMaps()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf("stateDir: %q\n", t.TempDir())+
		hookConfig("[v1/events, v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL()))
	e.WaitReady()
	_, compactions := keepCompacting(t, 200*time.Millisecond, watched.Passed)
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Rate: 200, Seed: 23})
	read := hookReader(t, hook, cloudEvents)
	more(t, read, 800) // which takes four seconds
	n := compactions()
	report := expectAll(t, watched, running.End(), read, oracle.CompareOptions{})
	t.Logf("%d compactions; %v", n, report)
	if n < 3 {
		t.Errorf("%d compactions during the load", n)
	}
	if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 || len(report.Duplicates) > 0 {
		t.Errorf("%v gaps, repeated %v", gaps, report.Duplicates)
	}
}

// expectGaps fails unless there are n gap records, all from the same position.
func expectGaps(t *testing.T, e *exporter, records []oracle.Record, n int) {
	t.Helper()
	gaps := gapsOf(records)
	if counted := e.Metrics().sum("kubeferry_watch_gaps_total"); len(gaps) != n || counted != float64(n) {
		t.Errorf("%d gap records, and %v by the metric, want %d", len(gaps), counted, n)
	}
	for _, gap := range gaps {
		if gap.From == "" || gap.From != gaps[0].From || gap.To == "" {
			t.Errorf("the gap is %+v, the first %+v", gap, gaps[0])
		}
	}
}

// expectRange fails unless there is a gap from a position that a watch could have been at after what it sent, before the server went on
// from left, to a version between back and the present one. It is for tests without an oracle, which judges the same.
func expectRange(tb testing.TB, config *rest.Config, gap oracle.Record, told []oracle.Record, left, back uint64) {
	tb.Helper()
	from, err := strconv.ParseUint(gap.From, 10, 64)
	to, err2 := strconv.ParseUint(gap.To, 10, 64)
	now := serverVersion(tb, config, gap.Resource)
	offset := uint64(0) // of the sequences
	for _, r := range told {
		if version, err := strconv.ParseUint(r.ResourceVersion, 10, 64); err == nil && !r.Inferred {
			offset = r.Sequence - version
		}
	}
	from, to = from-offset, to-offset
	if err != nil || err2 != nil || from > left || to < back || to > now {
		tb.Errorf("the gap is %+v, want from at most %d to between %d and %d", gap, left, back, now)
	}
	for _, r := range told {
		if r.Sequence-offset > from {
			tb.Errorf("the gap begins at %d, before %s, which was told", from, r.ID)
		}
	}
}

// serverVersion is the resource version that the API server is at.
func serverVersion(tb testing.TB, config *rest.Config, gvr schema.GroupVersionResource) uint64 {
	tb.Helper()
	list, err := objectsIn(tb, config, gvr, metav1.NamespaceDefault).client.List(tb.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		tb.Fatal(err)
	}
	version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
	if err != nil {
		tb.Fatal(err)
	}
	return version
}

// more waits until n more records have arrived.
func more(tb testing.TB, read reader, n int) {
	tb.Helper()
	want := len(read()) + n
	eventually(tb, 2*wide, fmt.Sprintf("%d more records", n), func() error {
		if got := len(read()); got < want {
			return fmt.Errorf("%d of %d", got, want)
		}
		return nil
	})
}

// TestExtendedContinueTokenExpires compacts etcd between two pages of the state that is read behind a refusal: the reading begins anew, and
// leads to the right end all the same. A second gap record says that what happened between the two readings may be missing, too.
func TestExtendedContinueTokenExpires(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "token")
	gateway, kubeconfig := gatewayOf(t, config)
	hook := webhooktest.Start(t)
	kinds := []load.Resource{load.Events()} // etcd itself serves their pages
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, kubeconfig, fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/events], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: 50}}}]
`, t.TempDir(), namespace, hook.URL()))
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 1500, Operations: 750, Concurrency: 8, Seed: 23}
	first := runLoad(t, config, opts)
	if first.Live <= 500 {
		t.Fatalf("%d objects fit into one page", first.Live)
	}
	e.WaitSettled(2 * wide)

	before := len(gateway.Requests())
	var pages atomic.Int64
	held, compacted := make(chan struct{}), make(chan struct{})
	gateway.Use(func(r *http.Request) *proxy.Fault {
		query := r.URL.Query()
		switch {
		case isWatch(r.URL.Path, query, "events") && pages.Load() == 0: // also at the position itself
			return &proxy.Fault{Status: refused}
		case query.Get("continue") != "" && pages.Add(1) == 1:
			close(held)
			return &proxy.Fault{Hold: compacted}
		default:
			return nil
		}
	})
	gateway.Cut()
	select {
	case <-held:
	case <-within(t, wide).Done():
		t.Fatal("no second page was asked for")
	}
	opts.Prefix, opts.Objects, opts.Operations, opts.Seed = "more", 100, 300, 24
	second := runLoad(t, config, opts)
	if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
		t.Fatal(err)
	}
	close(compacted)
	opts.Operations, opts.Seed = 100, 25
	third := runLoad(t, config, opts)

	all := &load.Result{UIDs: slices.Concat(first.UIDs, second.UIDs, third.UIDs)}
	read := hookReader(t, hook, cloudEvents)
	report := expectAll(t, watched, all, read, oracle.CompareOptions{AllowGaps: true})
	t.Log(report)
	if !slices.ContainsFunc(gateway.Requests()[before:], func(r proxy.Request) bool {
		return r.Query.Get("continue") != "" && r.Forwarded && r.Status == http.StatusGone
	}) {
		t.Error("the API server did not refuse the continue token")
	}
	expectGaps(t, e, read(), 2)
	expectState(t, config, read(), load.GVRs(kinds), namespace)
}
