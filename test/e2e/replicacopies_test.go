package e2e_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedNewestCopyIsLate kills the standby and, later, the leader, and starts the one with the older copy. The newer one is not there
// within staleWait: so the older one leads, and says so, also with a gap record of each watch, behind which the differences come. When the
// newer one comes, what waits in it is set aside.
func TestExtendedNewestCopyIsLate(t *testing.T) {
	beside(t)
	const staleWait = 4 * time.Second
	r := startLoaded(t, "late", 50, func(r *replicas) { r.staleWait = staleWait })
	leader, others := r.Leader()
	more(t, r.read, 50)
	r.hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	older := others[0]
	older.Kill()
	leader.WaitStandbys(0)
	r.WaitRenewed() // the Lease says so
	leader.WaitWaiting(wide, 100)
	leader.Kill()
	r.running = nil
	begun := time.Now()
	late := r.StartIn(older.dir)
	r.Leader()
	if took := time.Since(begun); took < staleWait {
		t.Errorf("it leads after %v, and staleWait is %v", took, staleWait)
	}
	if line := late.WaitLogged(wide, "with an older state than the last leader had"); line["level"] != "ERROR" {
		t.Errorf("the log says %v", line)
	}
	newer := r.StartIn(leader.dir)
	r.WaitInSync()
	if aside := r.SetAside(newer); len(aside) != 1 {
		t.Errorf("set aside: %v", aside)
	}
	if line := newer.WaitLogged(wide, "set aside", "undelivered entries"); line["level"] != "ERROR" {
		t.Errorf("the log says %v", line)
	}
	r.hook.Use(webhooktest.Accept())
	expectAll(t, r.watched, r.writing.End(), r.read, oracle.CompareOptions{AllowGaps: true, AllowLost: true})
	gaps := gapsOf(r.read())
	for _, gap := range gaps {
		if gap.Reason != "lost" {
			t.Errorf("the gap %s has the reason %s, want lost", gap.ID, gap.Reason)
		}
	}
	if len(gaps) != 2 { // ConfigMaps and Deployments
		t.Errorf("%d gaps: %v", len(gaps), gaps)
	}
}

// damage writes over all but the first pages of a state file.
func damage(tb testing.TB, dir string) {
	tb.Helper()
	file := filepath.Join(dir, "kubeferry.db")
	content, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	head := 2 * os.Getpagesize()
	if len(content) < 2*head {
		tb.Fatalf("the state file has %d bytes", len(content))
	}
	copy(content[head:], bytes.Repeat([]byte{0xff}, len(content)-head))
	if err := os.WriteFile(file, content, 0o600); err != nil {
		tb.Fatal(err)
	}
}

// TestExtendedCopyDamaged damages the copy of a standby that is down: it gets another. Then both are killed, the leader first, and its state is
// damaged: it is started first and leaves the Lease to the other one.
func TestExtendedCopyDamaged(t *testing.T) {
	beside(t)
	r := startLoaded(t, "damaged", 51, func(r *replicas) { r.staleWait = 10 * time.Minute })
	leader, others := r.Leader()
	more(t, r.read, 50)
	others[0].Kill()
	r.Remove(others[0])
	damage(t, others[0].dir)
	standby := r.StartIn(others[0].dir)
	standby.WaitLogged(wide, "cannot be used")
	r.WaitInSync()
	if aside := r.SetAside(standby); len(aside) != 1 {
		t.Errorf("set aside: %v", aside)
	}
	more(t, r.read, 100)

	leader.WaitStandbys(1)
	r.WaitRenewed()
	leader.Kill() // the Lease says that the standby has all
	standby.Kill()
	r.running = nil
	damage(t, leader.dir)
	damaged := r.StartIn(leader.dir)
	damaged.WaitLogged(wide, "cannot be used")
	whole := r.StartIn(standby.dir)
	if now, _ := r.WaitInSync(); now != whole {
		t.Error("the damaged one leads")
	}
	more(t, r.read, 50)
	r.Expect()
}

// TestExtendedStandbysDiskIsFull fills the standby's disk, and not the leader's, which goes on. Once what waits is delivered the standby is in
// sync again by itself.
func TestExtendedStandbysDiskIsFull(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "fulldisk")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	r := newReplicas(t, namespace, hookConfig("[v1/configmaps]", "{include: ["+namespace+"]}", hook.URL()))
	r.Start()
	leader, _ := r.Leader()
	limit, dir := limitedFiles(), t.TempDir()
	if os.Getuid() == 0 {
		limit = smallDisk()
	}
	r.adjust = append(r.adjust, limit(dir))
	standby := r.StartIn(dir)
	r.WaitInSync()
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	done := runLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: 50, Operations: 400, Size: 4 << 10, Seed: 52, Concurrency: 8,
	})
	leader.WaitWaiting(wide, 400)
	standby.WaitLogged(wide, "no connection to the leader", "the copy of the leader's state")
	eventually(t, wide, "the leader has no standby", func() error {
		if n := leader.Metrics().sum("kubeferry_standbys_in_sync"); n != 0 {
			return fmt.Errorf("%v", n)
		}
		if code, _ := standby.Get("/readyz"); code == http.StatusOK {
			return errors.New("the standby is ready")
		}
		return nil
	})
	if code, body := leader.Get("/readyz"); code != http.StatusOK {
		t.Errorf("the leader is not ready: %s", body)
	}
	hook.Use(webhooktest.Accept())
	report := expectAll(t, watched, done, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	t.Log(report)
	if len(report.Duplicates) > 0 && !r.Paused() {
		t.Errorf("%d duplicates", len(report.Duplicates))
	}
	if now, _ := r.WaitInSync(); now != leader {
		t.Error("another one leads")
	}
}

// endedByItself returns whether a replica has ended, as one that finds that the history went back.
func (m *member) endedByItself() bool {
	select {
	case <-m.process.Done():
		return true
	default:
		return false
	}
}

// TestExtendedEtcdRestoredBesideReplicas puts an older state of the cluster back while the standby holds a copy of a newer one, with changes
// in it that were not delivered to one of two sinks. All that follows has ids of its own, also from the standby that leads later, and what
// was not delivered still is.
func TestExtendedEtcdRestoredBesideReplicas(t *testing.T) {
	beside(t)
	c := controlplane.ForTest(t, controlplane.Options{})
	config := c.Config()
	hook, gone := webhooktest.Start(t), webhooktest.Start(t)
	gone.Use(webhooktest.Status(http.StatusServiceUnavailable))
	const namespace = "restored"
	if err := load.CreateNamespaces(t.Context(), config, namespace); err != nil {
		t.Fatal(err)
	}
	r := newReplicasAt(t, c, namespace, fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}, {name: gone, sink: gone}]
sinks: [{name: hook, webhook: {url: %q}}, {name: gone, webhook: {url: %q}}]
`, namespace, hook.URL(), gone.URL()))
	maps := objectsIn(t, config, configMaps, namespace)
	maps.Create("web", data("1"))
	r.Start()
	r.Leader()
	r.Start()
	r.WaitInSync()
	records := hookReader(t, hook, cloudEvents)
	wait(t, records, "web", oracle.Added)
	if err := c.BackUpEtcd(); err != nil {
		t.Fatal(err)
	}
	for n := range 20 {
		maps.Patch("web", data(fmt.Sprint("lost ", n)))
	}
	leader, others := r.WaitInSync()
	both := []*member{leader, others[0]}
	lost := 20
	commitTwice(t, func() {
		maps.Patch("web", data(fmt.Sprint("lost ", lost)))
		lost++
	}, leader.dir, others[0].dir)
	eventually(t, wide, "the changes that will be lost", func() error {
		if n := len(of(records(), "web")); n < 1+lost {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	leader.WaitStandbys(1)
	for _, m := range both {
		m.leaves = true
	}
	if err := c.RestoreEtcd(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	before := len(records())
	maps.Patch("web", data("after the restore"))
	eventually(t, 2*wide, "the change after the restore", func() error {
		for _, m := range slices.Clone(r.running) {
			if m.endedByItself() {
				m.Ends(wide)
				r.Remove(m)
				r.StartIn(m.dir).leaves = true
			}
		}
		for _, record := range records()[before:] {
			if record.Name == "web" && strings.Contains(record.ID, clusterName+"+1/") {
				return nil
			}
		}
		return fmt.Errorf("%d records", len(records())-before)
	})
	leader, _ = r.WaitInSync()
	for _, record := range records()[before:] {
		if record.Type != oracle.Gap && record.Type != oracle.Mark && !strings.Contains(record.ID, clusterName+"+1/") {
			t.Errorf("%s is of before the restore", record.ID)
		}
	}
	expectState(t, config, records(), []schema.GroupVersionResource{configMaps}, namespace)

	leader.Kill()
	r.Remove(leader)
	r.Leader()
	before = len(records())
	maps.Patch("web", data("after the kill"))
	eventually(t, wide, "the change after the kill", func() error {
		if len(records()) == before {
			return errors.New("nothing")
		}
		return nil
	})
	for _, record := range records()[before:] {
		if record.Type != oracle.Gap && record.Type != oracle.Mark && !strings.Contains(record.ID, clusterName+"+1/") {
			t.Errorf("%s is of before the restore", record.ID)
		}
	}
	expectState(t, config, records(), []schema.GroupVersionResource{configMaps}, namespace)
	gone.Use(webhooktest.Accept())
	late, all := hookReader(t, gone, cloudEvents), records()
	last := all[len(all)-1].ID
	eventually(t, wide, "the last change", func() error {
		if !slices.ContainsFunc(late(), func(record oracle.Record) bool { return record.ID == last }) {
			return fmt.Errorf("%d records", len(late()))
		}
		return nil
	})
	expectState(t, config, late(), []schema.GroupVersionResource{configMaps}, namespace)
	for _, m := range r.running {
		m.Kill() // else it drains
	}
}

// TestExtendedRolloutOfAnotherConfiguration starts a replica with a configuration that does not load, and then one that has another pipeline: the
// first ends and stops nothing, the second takes over. With KUBEFERRY_FORMER, the path of
// a program of a former version, the replicas before are of that version, and in the end it takes over again.
func TestExtendedRolloutOfAnotherConfiguration(t *testing.T) {
	beside(t)
	former := os.Getenv("KUBEFERRY_FORMER")
	ofFormer := []func(*process.Options){func(o *process.Options) { o.Path = cmp.Or(former, o.Path) }}
	r := startLoaded(t, "rollout", 53, func(r *replicas) { r.adjust = ofFormer })
	more(t, r.read, 50)
	added := webhooktest.Start(t)
	broken := writeConfig(t, t.TempDir(), strings.Replace(r.text(t.TempDir()), "pipelines:", "pipes:", 1))
	if output, code := runToEnd(t, "run", "--config", broken, "--kubeconfig", r.kubeconfig); code != 2 {
		t.Errorf("a configuration that does not load ends with %d\n%s", code, output)
	}
	// Only a leader needs these: a replica without one must not get ready.
	taken, _ := r.Endpoint()
	for cause, change := range map[string][2]string{
		"/nowhere/token": {"webhook: {", "webhook: {auth: {bearerTokenFile: /nowhere/token}, insecureCredentials: true, "},
		"/nowhere/ca":    {"webhook: {", "webhook: {tls: {caFile: /nowhere/ca}, "},
		"in use":         {r.replication, fmt.Sprintf("{listen: %q}", taken)},
	} {
		text := r.text(t.TempDir())
		changed := strings.Replace(text, change[0], change[1], 1)
		if output, code := runToEnd(t, "run", "--config", writeConfig(t, t.TempDir(), changed), "--kubeconfig", r.kubeconfig); changed == text || code == 0 || !strings.Contains(output, cause) {
			t.Errorf("a replica that could not lead ends with %d, want an end due to %q\n%s", code, cause, output)
		}
	}
	more(t, r.read, 50)

	old := r.config
	r.config = strings.NewReplacer(
		"{name: p, sink: hook}", "{name: p, sink: hook}, {name: added, sink: added}",
		"sinks: [", fmt.Sprintf("sinks: [{name: added, webhook: {url: %q}}, ", added.URL()),
	).Replace(old)
	if r.config == old {
		t.Fatal("the configuration is the same")
	}
	roll := func() (now *member) {
		leader, others := r.WaitInSync()
		for _, m := range []*member{others[0], leader} { // one after the other, each before one of the old ones goes
			r.Start()
			r.WaitInSync()
			m.Stop()
			r.Remove(m)
		}
		now, _ = r.WaitInSync()
		more(t, r.read, 50)
		return now
	}
	r.adjust = nil
	now := roll()
	if former != "" {
		r.adjust = ofFormer
		now = roll()
	}
	report := r.Expect()
	if len(report.Duplicates) > 5 && !r.Paused() {
		t.Errorf("%d records repeated", len(report.Duplicates))
	}
	now.WaitWaiting(wide, 0)
	if len(added.Accepted()) == 0 {
		t.Error("the pipeline that was added has sent nothing")
	}
	expectState(t, plane(t).Config(), hookReader(t, added, cloudEvents)(), []schema.GroupVersionResource{configMaps, load.Deployments().GVR}, r.namespace)
}
