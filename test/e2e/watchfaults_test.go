package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// soaking reports whether the long forms of the tests are to run.
func soaking() bool { return os.Getenv("KUBEFERRY_SOAK") != "" }

// statusOf is what the API server answers with an error of its own.
func statusOf(err apierrors.APIStatus) *metav1.Status {
	status := err.Status()
	status.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
	return &status
}

// TestWatchStartFails lets every attempt to open a watch fail for a while, and has kubeferry killed and started again
// meanwhile: that is no loss of history, so nothing is read again, no gap is sent, and every change arrives.
func TestWatchStartFails(t *testing.T) {
	t.Parallel()
	lasts := 3 * time.Second // at least, until attempts have failed before and after the kill
	if soaking() {
		lasts = 30 * time.Second
	}
	group := schema.GroupResource{Resource: "configmaps"}
	forbidden := apierrors.NewForbidden(group, "", fmt.Errorf("for a while"))
	for name, fault := range map[string]*proxy.Fault{
		"time-out":              {Wait: 2 * time.Second, Status: statusOf(apierrors.NewTimeoutError("for a while", 1))},
		"no answer":             {Hold: make(chan struct{})}, // until the connection breaks
		"reset":                 {Reset: true},
		"500":                   {Status: statusOf(apierrors.NewInternalError(fmt.Errorf("for a while")))},
		"503":                   {Status: statusOf(apierrors.NewServiceUnavailable("for a while"))},
		"503 of a proxy before": {Code: http.StatusServiceUnavailable, Body: "no upstream"},
		"429":                   {Status: statusOf(apierrors.NewTooManyRequests("for a while", 1))},
		"403":                   {Status: statusOf(forbidden)},
	} {
		t.Run(name, func(t *testing.T) {
			beside(t)
			config := plane(t).Config()
			namespace := newNamespace(t, "start")
			gateway, kubeconfig := gatewayOf(t, config)
			hook := webhooktest.Start(t)
			kinds := []load.Resource{load.ConfigMaps(), load.Deployments()}
			watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
			dir := t.TempDir()
			text := fmt.Sprintf("stateDir: %q\n", dir) +
				hookConfig("[v1/configmaps, apps/v1/deployments]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
			e := startExporter(t, kubeconfig, text)
			e.WaitReady()
			running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 20, Rate: 40})
			read := hookReader(t, hook, cloudEvents)
			arrived := func(n int) {
				t.Helper()
				eventually(t, wide, "changes arrive", func() error {
					if got := len(read()); got < n {
						return fmt.Errorf("%d", got)
					}
					return nil
				})
			}
			arrived(40)
			watchCommits(t, dir).Wait(2) // a killed kubeferry goes on from a position, not from its snapshot
			before := len(gateway.Requests())
			gateway.Use(watches("configmaps", fault))
			gateway.Cut()
			tried := func(from int) int {
				return len(slices.DeleteFunc(gateway.Requests()[from:], func(r proxy.Request) bool {
					return !isWatch(r.Path, r.Query, "configmaps") || r.Forwarded
				}))
			}
			fails := func(from int) {
				t.Helper()
				eventually(t, wide, "an attempt to watch", func() error {
					if tried(from) == 0 {
						return errors.New("there is none")
					}
					return nil
				})
			}
			half := time.After(lasts / 2)
			over := time.After(lasts)
			arrived(len(read()) + 40) // the other watch goes on
			fails(before)
			<-half
			e.Kill()
			killed := len(gateway.Requests())
			e = startExporter(t, kubeconfig, text)
			fails(killed)
			<-over
			failed := tried(before)
			gateway.Use(nil)
			if fault.Hold != nil {
				gateway.Cut()
			}
			done := running.End()
			report := expectAll(t, watched, done, read, oracle.CompareOptions{})
			t.Logf("%d attempts to watch failed; %s", failed, report)
			for _, r := range relists(gateway.Requests()[before:], "configmaps") {
				t.Errorf("a relist: %+v", r)
			}
			if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
				t.Errorf("%v gaps", gaps)
			}
			e.WaitReady()
		})
	}
}

// TestExtendedWatchCutInMidLine breaks every watch in the middle of a line, a few changes after it began, for a whole load.
func TestExtendedWatchCutInMidLine(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "midline")
	gateway, kubeconfig := gatewayOf(t, config)
	hook := webhooktest.Start(t)
	kinds := []load.Resource{load.ConfigMaps(), load.Events()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	e := startExporter(t, kubeconfig, hookConfig("[v1/configmaps, v1/events]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL()))
	e.WaitReady()
	before := len(gateway.Requests())
	var cuts atomic.Int64
	gateway.Use(func(r *http.Request) *proxy.Fault {
		if r.URL.Query().Get("watch") == "" {
			return nil
		}
		return &proxy.Fault{After: int(cuts.Add(1) % 7), Cut: true}
	})
	gateway.Cut()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 21, Rate: 60})
	eventually(t, 3*wide, "both watches are cut many times", func() error {
		if n := cuts.Load(); n < 40 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	done := running.End()
	gateway.Use(nil)
	gateway.Cut() // what is open waits for one more line to be cut
	report := expectAll(t, watched, done, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	t.Logf("%d watches; %s", cuts.Load(), report)
	if len(report.Duplicates) > 0 {
		t.Errorf("repeated: %v", report.Duplicates)
	}
	for _, resource := range []string{"configmaps", "events"} {
		for _, r := range relists(gateway.Requests()[before:], resource) {
			t.Errorf("a relist: %+v", r)
		}
	}
	if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
		t.Errorf("%v gaps", gaps)
	}
}

// TestExtendedWatchThatIsSwallowed has watches on a connection that answers pings and lets nothing else through, as a middlebox does that has
// forgotten half of a connection. Once a watch has sent a bookmark, one that sends none for 70 s leaves the connection: the watches on
// it, that of Events without bookmarks too, are opened again at their positions on another one.
func TestExtendedWatchThatIsSwallowed(t *testing.T) {
	t.Parallel() // it only waits: it takes no place of another test
	config := plane(t).Config()
	namespace := newNamespace(t, "swallowed")
	gateway := proxy.NewHTTP2(t, config)
	hook := webhooktest.Start(t)
	kinds := []load.Resource{load.ConfigMaps(), load.Events()}
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	opened := func(resource string) (watches []proxy.Request) {
		for _, r := range gateway.Requests() {
			if isWatch(r.Path, r.Query, resource) && r.Status == http.StatusOK {
				watches = append(watches, r)
			}
		}
		return watches
	}
	// The first change is replaced by the bookmark that the API server may send before it.
	const bookmark = `{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":%q}}}`
	var swallowed atomic.Bool
	gateway.Use(func(r *http.Request) *proxy.Fault {
		if !isWatch(r.URL.Path, r.URL.Query(), "configmaps") || swallowed.Swap(true) {
			return nil
		}
		return &proxy.Fault{Instead: fmt.Sprintf(bookmark, r.URL.Query().Get("resourceVersion")), Swallow: true}
	})
	e := startExporter(t, writeKubeconfig(t, gateway.Config()), hookConfig("[v1/configmaps, v1/events]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL()))
	e.WaitReady()
	before := len(gateway.Requests())
	eventually(t, wide, "the watches are open", func() error {
		if len(opened("configmaps")) == 0 || len(opened("events")) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	var written atomic.Int64
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 22, Rate: 40, OnWrite: written.Store})
	eventually(t, wide, "changes are made", func() error {
		if n := written.Load(); n < 100 {
			return fmt.Errorf("%d changes", n)
		}
		return nil
	})
	pulse, begun := startPulse(t, nil), time.Now() // the bookmark has come, and nothing since
	done := running.End()
	for _, r := range hook.Accepted() {
		if bytes.Contains(r.Body, []byte(`"kind":"ConfigMap"`)) {
			t.Errorf("a change came through a connection that swallows them: %s", r.Body)
		}
	}
	eventually(t, 5*wide, "the watches are opened again", func() error {
		if len(opened("configmaps")) < 2 || len(opened("events")) < 2 {
			return errors.New("not yet")
		}
		return nil
	})
	report := expectAll(t, watched, done, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	t.Log(report)
	if len(report.Duplicates) > 0 {
		t.Errorf("repeated: %v", report.Duplicates)
	}
	slack := e.Slowed(10 * time.Second)
	for _, resource := range []string{"configmaps", "events"} {
		again := opened(resource)[1].Time
		if took, most := again.Sub(begun), 70*time.Second+slack+pulse.Stalled(begun, again); took > most {
			t.Errorf("the watch of %s was opened again after %v, want %v at most", resource, took, most)
		}
		for _, r := range relists(gateway.Requests()[before:], resource) {
			t.Errorf("a relist: %+v", r)
		}
	}
	if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 0 {
		t.Errorf("%v gaps", gaps)
	}
}
