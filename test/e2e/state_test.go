package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// commitInterval is the longest that something stays unsecured, as docs/architecture.md says, with room for a slow disk
// on a busy machine.
const commitInterval = 200*time.Millisecond + 800*time.Millisecond

// commitTwice makes changes until two more commits are complete in each state directory: what was settled before is in the second. Without
// changes there are no commits.
func commitTwice(tb testing.TB, change func(), dirs ...string) {
	tb.Helper()
	var all []*commits
	var want []uint64
	for _, dir := range dirs {
		c := watchCommits(tb, dir)
		all, want = append(all, c), append(want, c.Number()+2)
		defer c.End()
	}
	eventually(tb, wide, "two more commits", func() error {
		change()
		for n, c := range all {
			if got := c.Number(); got < want[n] {
				return fmt.Errorf("%s is at %d, want %d", dirs[n], got, want[n])
			}
		}
		return nil
	})
}

// plain makes kubeferry run without the race detector, for tests that look at its memory or speed.
func plain(tb testing.TB) func(*process.Options) {
	tb.Helper()
	binary, err := programs.Exporter().Path()
	if err != nil {
		tb.Fatal(err)
	}
	return func(o *process.Options) { o.Path = binary }
}

// TestAwayPastCompaction stops kubeferry while objects are created, changed, deleted and created again, and has the
// history forgotten: it gets exactly the net difference, behind one gap record, and nothing for what stayed.
func TestAwayPastCompaction(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "away")
	maps := objectsIn(t, config, configMaps, namespace)
	for _, name := range []string{"kept", "changed", "deleted", "recreated"} {
		maps.Create(name, data("1"))
	}
	hook := webhooktest.Start(t)
	text := fmt.Sprintf("stateDir: %q\n", t.TempDir()) + hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	read := hookReader(t, hook, cloudEvents)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	e.WaitSettled(wide)
	e.Stop()
	if n := len(read()); n != 4 {
		t.Fatalf("%d records before, want the snapshot of 4", n)
	}

	left := serverVersion(t, config, configMaps)
	maps.Patch("changed", data("2"))
	maps.Patch("changed", data("3"))
	maps.Delete("deleted")
	maps.Delete("recreated")
	maps.Create("recreated", data("2"))
	maps.Create("new", data("1"))
	maps.Create("passing", data("1"))
	maps.Delete("passing")
	back := serverVersion(t, config, configMaps)
	if _, err := plane(t).CompactEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := plane(t).RestartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}

	e = startExporter(t, plane(t).KubeconfigFile(), text)
	eventually(t, wide, "the net difference", func() error {
		if n := len(read()); n < 10 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	e.WaitReady()
	e.WaitSettled(wide)
	after := read()[4:]
	got := map[string]int{}
	for _, r := range after {
		got[r.Type+" "+r.Name]++
	}
	want := []string{"GAP ", "MODIFIED changed", "DELETED deleted", "DELETED recreated", "ADDED recreated", "ADDED new"}
	for _, what := range want {
		if got[what] != 1 {
			t.Errorf("%s: %d times, want once", what, got[what])
		}
	}
	if len(after) != len(want) {
		t.Errorf("got %d records, want %d: %v", len(after), len(want), got)
	}
	if gaps := gapsOf(after); len(gaps) == 1 { // it holds back nothing, so it may come later than the others
		expectRange(t, config, gaps[0], read()[:4], left, back)
	}
	for _, r := range after {
		if !r.Inferred && r.Type != oracle.Gap {
			t.Errorf("%s is not marked as inferred", r.ID)
		}
	}
	expectState(t, config, read(), load.GVRs([]load.Resource{load.ConfigMaps()}), namespace)
}

// TestDeadSinkAmongThree keeps one of three pipelines dead, kills kubeferry in the middle of a load, and compacts. The
// two others repeat nothing but what they delivered since the last commit, and keep their latency; the dead one gets
// everything when its sink returns.
func TestDeadSinkAmongThree(t *testing.T) {
	config := plane(t).Config()
	namespace := newNamespace(t, "three")
	kinds := []load.Resource{load.ConfigMaps()}
	one, two, dead := webhooktest.Start(t), webhooktest.Start(t), webhooktest.Start(t)
	dead.Use(webhooktest.Status(http.StatusBadGateway))
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	const underWay = 2 * 5 // what the configuration allows the two
	dir := t.TempDir()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines:
  - {name: one, sink: one}
  - {name: dead, sink: dead, backlog: {maxBytes: 64Ki}}
  - {name: two, sink: two, format: json}
sinks:
  - {name: one, webhook: {url: %q, batch: {maxRecords: 5}, concurrency: 2}}
  - {name: two, webhook: {url: %q, batch: {maxRecords: 5}, concurrency: 2}}
  - {name: dead, webhook: {url: %q, batch: {maxRecords: 20}}}
`, dir, namespace, one.URL(), two.URL(), dead.URL())
	runs := []*commits{watchCommits(t, dir)}
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 30, Seed: 11, Rate: 150})
	alive := map[string]*webhooktest.Receiver{"one": one, "two": two}
	more := func(n int) {
		t.Helper()
		for name, hook := range alive {
			want := len(hook.Accepted()) + n
			eventually(t, 2*wide, fmt.Sprintf("pipeline %s delivers %d more", name, n), func() error {
				if got := len(hook.Accepted()); got < want {
					return fmt.Errorf("%d, want %d", got, want)
				}
				return nil
			})
		}
	}
	more(300)
	runs[0].Measure(e)
	e.Kill()
	runs[0].End()
	if _, err := plane(t).CompactEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	runs = append(runs, watchCommits(t, dir))
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	more(300)
	if len(running.result) > 0 {
		t.Fatal("the load was over before its time")
	}
	all := running.End()

	for _, read := range []reader{hookReader(t, one, cloudEvents), hookReader(t, two, plainJSON)} {
		expectAll(t, watched, all, read, oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	}
	runs[1].Measure(e)
	runs[1].End()
	for name, hook := range alive {
		expectFewRepeats(t, name, hookArrivals(hook), runs, underWay)
	}
	expectFrequentCommits(t, hookArrivals(one), runs)
	m := e.Metrics()
	if waiting := m.sum("kubeferry_backlog_deltas", "pipeline=dead"); waiting < 500 {
		t.Errorf("%v wait in the dead pipeline", waiting)
	}
	for _, name := range []string{"one", "two"} {
		seconds := m.sum("kubeferry_delivery_seconds_sum", "pipeline="+name) / m.sum("kubeferry_delivery_seconds_count", "pipeline="+name)
		if most := e.Slowed(time.Second) + runs[1].pulse.Stalled(runs[1].started, runs[1].ended); seconds > most.Seconds() {
			t.Errorf("pipeline %s took %v s per delivery, want at most %v", name, seconds, most)
		}
	}
	e.checkLedgers()
	dead.Use(webhooktest.Accept())
	t.Log(expectAll(t, watched, all, hookReader(t, dead, cloudEvents), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden}))
	e.WaitWaiting(wide, 0)
}

// TestOneHotObject changes a single object as fast as the server takes it: every change arrives, in order.
func TestOneHotObject(t *testing.T) {
	beside(t)
	changes := 500
	if soaking() {
		changes = 20000
	}
	config := plane(t).Config()
	namespace := newNamespace(t, "hot")
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs([]load.Resource{load.ConfigMaps()}), Namespaces: []string{namespace}})
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: 100}}}]
`, t.TempDir(), namespace, hook.URL()))
	e.WaitReady()
	maps := objectsIn(t, config, configMaps, namespace)
	object := maps.Create("hot", data("0"))
	for n := range changes {
		maps.Patch("hot", data(strconv.Itoa(n+1)))
	}
	all := &load.Result{UIDs: []string{string(object.GetUID())}}
	report := expectAll(t, watched, all, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	if report.Expected != changes+1 || len(report.Duplicates) > 0 {
		t.Error(report)
	}
}

// TestFullDisk fills the disk of the state directory: deliveries go on, kubeferry reports it and is not ready. Either it
// is killed, and goes on where the last commit was once there is room again; or the sink comes back, and it is ready
// again by itself once it has delivered what there is no room for.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	t.Run("killed", func(t *testing.T) {
		beside(t)
		full := fillDisk(t, limitedFiles())
		full.exporter.Kill()
		full.hook.Use(webhooktest.Accept())
		e := startExporter(t, plane(t).KubeconfigFile(), full.text)
		t.Log(expectAll(t, full.watched, full.all, hookReader(t, full.hook, cloudEvents), oracle.CompareOptions{}))
		e.WaitReady()
	})
	t.Run("delivered", func(t *testing.T) {
		beside(t)
		limit := limitedFiles()
		if os.Getuid() == 0 {
			limit = smallDisk()
		}
		full := fillDisk(t, limit)
		full.hook.Use(webhooktest.Accept())
		e := full.exporter
		e.WaitSettled(wide)
		eventually(t, wide, "ready again", func() error {
			if code, body := e.Get("/readyz"); code != http.StatusOK {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
		e.WaitLogged(wide, "the checkpoint can be written again")
		report := expectAll(t, full.watched, full.all, hookReader(t, full.hook, cloudEvents), oracle.CompareOptions{})
		t.Log(report)
		if len(report.Duplicates) > 0 {
			t.Errorf("repeated: %v", report.Duplicates)
		}
		e.Stop()
	})
}

// fullDisk is a kubeferry whose state directory has no room for what waits.
type fullDisk struct {
	exporter *exporter
	text     string
	hook     *webhooktest.Receiver
	watched  *oracle.Oracle
	all      *load.Result
}

func fillDisk(t *testing.T, limit func(dir string) func(*process.Options)) *fullDisk {
	t.Helper()
	config := plane(t).Config()
	namespace := newNamespace(t, "full")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	dir := t.TempDir()
	text := fmt.Sprintf("stateDir: %q\n", dir) + hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text, limit(dir))
	e.WaitReady()
	objects := objectsIn(t, config, configMaps, namespace)
	objects.Create("committed", nil)
	inside := fmt.Sprintf("/proc/%d/root%s", e.process.Pid(), dir) // a disk may be mounted for kubeferry only
	if _, err := os.Stat(inside); err != nil {
		inside = dir
	}
	commitTwice(t, func() { objects.Patch("committed", data(time.Now().String())) }, inside)
	e.WaitSettled(wide)
	hook.Use(webhooktest.Status(http.StatusInternalServerError))
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 50, Operations: 400, Seed: 15, Size: 4096}
	all := runLoad(t, config, opts)
	e.WaitLogged(wide, "cannot write the checkpoint")
	eventually(t, wide, "not ready", func() error {
		if code, body := e.Get("/readyz"); code == http.StatusOK || !strings.Contains(body, "state directory") {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	if code, body := e.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	if got, ok := e.Metrics()["kubeferry_state_writable"]; !ok || got != 0 {
		t.Errorf("kubeferry_state_writable is %v, want 0", got)
	}
	return &fullDisk{e, text, hook, watched, all}
}

// limitedFiles limits the size of each file, which is as near as one gets to a full disk without the right to mount one.
// The shell's unit is 512 or 1024 bytes; the log of kubeferry has the same limit.
func limitedFiles() func(string) func(*process.Options) {
	return func(string) func(*process.Options) {
		return func(o *process.Options) {
			o.Args = append([]string{"-c", `ulimit -f 200; exec "$0" "$@"`, o.Path}, o.Args...)
			o.Path = "/bin/sh"
		}
	}
}

// smallDisk mounts a disk of 600 KiB over the directory, in a namespace of kubeferry's own, with which it ends.
func smallDisk() func(string) func(*process.Options) {
	return func(dir string) func(*process.Options) {
		return func(o *process.Options) {
			const script = `mount -t tmpfs -o size=600k none "$0" && exec "$@"`
			o.Args = slices.Concat([]string{"--mount", "--propagation", "private", "sh", "-c", script, dir, o.Path}, o.Args)
			o.Path = "unshare"
		}
	}
}

// TestStateDirectoryThatCannotBeUsed gives clear errors and leaves everything as it was.
func TestStateDirectoryThatCannotBeUsed(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "dir")
	hook := webhooktest.Start(t)
	dir := t.TempDir()
	config := func(dir string) string {
		return writeConfig(t, t.TempDir(), fmt.Sprintf("stateDir: %q\n", dir)+hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL()))
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	output, code := runToEnd(t, "run", "--config", config(file), "--kubeconfig", plane(t).KubeconfigFile())
	if code != 1 || !strings.Contains(output, "state directory") {
		t.Errorf("a file in its place: exit %d\n%s", code, output)
	}

	state := filepath.Join(dir, "state")
	text := fmt.Sprintf("stateDir: %q\n", state) + hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	output, code = runToEnd(t, "run", "--config", config(state), "--kubeconfig", plane(t).KubeconfigFile())
	if code != 1 || !strings.Contains(output, "another process uses the state directory") {
		t.Errorf("a second kubeferry: exit %d\n%s", code, output)
	}
	e.Stop()

	// Another cluster's state is set aside, not mixed in.
	other := filepath.Join(dir, "other")
	if err := os.CopyFS(other, os.DirFS(state)); err != nil {
		t.Fatal(err)
	}
	if err := flip(filepath.Join(other, "kubeferry.db"), clusterUID(t)); err != nil {
		t.Fatal(err)
	}
	e = startExporter(t, plane(t).KubeconfigFile(), strings.Replace(text, strconv.Quote(state), strconv.Quote(other), 1))
	e.WaitLogged(wide, "set aside", "another cluster")
	if aside, _ := filepath.Glob(filepath.Join(other, "*.set-aside-*")); len(aside) != 1 {
		t.Errorf("set aside: %v", aside)
	}
	e.WaitReady()
}

// clusterUID is what identifies the cluster.
func clusterUID(tb testing.TB) string {
	tb.Helper()
	namespaces := objectsIn(tb, plane(tb).Config(), configMaps.GroupVersion().WithResource("namespaces"), "")
	object, err := namespaces.client.Get(tb.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return string(object.GetUID())
}

// flip makes a state file another cluster's: the same length, another uid.
func flip(path, uid string) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !strings.Contains(string(content), uid) {
		return errors.New("the file does not hold the cluster's uid")
	}
	first := "0"
	if uid[0] == '0' {
		first = "1"
	}
	return os.WriteFile(path, []byte(strings.ReplaceAll(string(content), uid, first+uid[1:])), 0o600)
}
