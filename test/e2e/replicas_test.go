package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// leaseDuration is that of the replicas in these tests, unless they are patient: it is short for what waits until it is over.
const leaseDuration = 3 * time.Second

// replicas are processes that share a Lease, each with a state directory of its own.
type replicas struct {
	tb        testing.TB
	namespace string
	admin     *rest.Config
	account   *rest.Config // of the replicas
	config    string       // what is the same for all; REPLICA in it is the number of the replica, from 1 on
	// starting, if set, is called before each starts, with its number, and may change what follows.
	starting      func(number int)
	kubeconfig    string
	replication   string
	leaseDuration time.Duration
	renewDeadline time.Duration
	staleWait     time.Duration
	adjust        []func(*process.Options)
	rate          int // of changes, in startLoaded

	running []*member
	made    int
	paused  bool // of those that are removed
}

// member is one of them.
type member struct {
	*exporter
	dir string
}

// newReplicas prepares replicas that run as a ServiceAccount of the namespace with no more rights than they need.
func newReplicas(tb testing.TB, namespace, config string) *replicas {
	tb.Helper()
	return newReplicasAt(tb, plane(tb), namespace, config)
}

func newReplicasAt(tb testing.TB, at *controlplane.ControlPlane, namespace, config string) *replicas {
	tb.Helper()
	account, err := at.ServiceAccountConfig(tb.Context(), namespace, "exporter")
	if err != nil {
		tb.Fatal(err)
	}
	grantReplicas(tb, at.Config(), namespace)
	return &replicas{
		tb: tb, namespace: namespace, admin: at.Config(), account: account, config: config,
		kubeconfig: writeKubeconfig(tb, account), replication: `{listen: "127.0.0.1:0"}`, staleWait: 30 * time.Second, rate: 100,
		leaseDuration: leaseDuration, renewDeadline: 2 * time.Second,
	}
}

// patient gives the replicas of a test that is not about it a Lease that a busy leader does not lose.
func (r *replicas) patient() { r.leaseDuration, r.renewDeadline = 10*time.Second, 8*time.Second }

// grantReplicas gives the ServiceAccount exporter of a namespace what deploy/base does, and what its sources need.
func grantReplicas(tb testing.TB, config *rest.Config, namespace string) {
	tb.Helper()
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	rule := func(group, resource string, verbs ...any) any {
		return map[string]any{"apiGroups": []any{group}, "resources": []any{resource}, "verbs": verbs}
	}
	subjects := []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": "exporter"}}
	objectsIn(tb, config, rbac.WithResource("roles"), namespace).Create("replicas", map[string]any{"rules": []any{
		rule("coordination.k8s.io", "leases", "get", "create", "update"),
		rule("", "serviceaccounts/token", "create"),
		rule("", "configmaps", "list", "watch"),
		rule("", "events", "list", "watch"),
		rule("apps", "deployments", "list", "watch"),
	}})
	objectsIn(tb, config, rbac.WithResource("rolebindings"), namespace).Create("replicas", map[string]any{
		"roleRef": map[string]any{"apiGroup": rbac.Group, "kind": "Role", "name": "replicas"}, "subjects": subjects,
	})
	objectsIn(tb, config, rbac.WithResource("clusterroles"), "").Create(namespace, map[string]any{"rules": []any{
		rule("authentication.k8s.io", "tokenreviews", "create"),
		rule("", "namespaces", "get"),
	}})
	objectsIn(tb, config, rbac.WithResource("clusterrolebindings"), "").Create(namespace, map[string]any{
		"roleRef": map[string]any{"apiGroup": rbac.Group, "kind": "ClusterRole", "name": namespace}, "subjects": subjects,
	})
}

// Start starts a replica with an empty state directory.
func (r *replicas) Start() *member {
	r.tb.Helper()
	return r.StartIn(r.tb.TempDir())
}

// StartIn starts a replica with a state directory.
func (r *replicas) StartIn(dir string) *member {
	r.tb.Helper()
	r.made++
	if r.starting != nil {
		r.starting(r.made)
	}
	m := &member{dir: dir}
	m.exporter = startExporter(r.tb, r.kubeconfig, r.text(dir), r.adjust...)
	r.running = append(r.running, m)
	return m
}

// text is the configuration of the replica that was made last, with a state directory.
func (r *replicas) text(dir string) string {
	return fmt.Sprintf(`
stateDir: %q
leaderElection: {leaseName: kubeferry, leaseNamespace: %s, leaseDuration: %v, renewDeadline: %v, retryPeriod: 500ms, staleWait: %v}
replication: %s
`, dir, r.namespace, r.leaseDuration, r.renewDeadline, r.staleWait, r.replication) + strings.ReplaceAll(r.config, "REPLICA", strconv.Itoa(r.made))
}

// Leader waits until one of those that run leads and is ready, and returns it and the others.
func (r *replicas) Leader() (leader *member, others []*member) {
	r.tb.Helper()
	eventually(r.tb, wide, "one replica leads", func() error {
		leader, others = nil, nil
		for _, m := range r.running {
			switch code, body := m.Get("/readyz"); {
			case m.Metrics().sum("kubeferry_leader") != 1:
				others = append(others, m)
			case code != http.StatusOK:
				return fmt.Errorf("the leader is not ready: %s", body)
			case leader != nil:
				return fmt.Errorf("two lead")
			default:
				leader = m
			}
		}
		if leader == nil {
			return fmt.Errorf("none of %d", len(r.running))
		}
		return nil
	})
	return leader, others
}

// WaitInSync returns when all that run are ready: one leads, and the others have its state.
func (r *replicas) WaitInSync() (leader *member, others []*member) {
	r.tb.Helper()
	leader, others = r.Leader()
	for _, m := range others {
		m.WaitReady()
	}
	return leader, others
}

// paused reports whether a replica could not renew its Lease in time, on a busy machine: what was under way is sent again.
func (m *member) paused() bool { return len(m.Logged("the Lease could not be renewed in time")) > 0 }

// Paused reports whether one of them paused.
func (r *replicas) Paused() bool {
	return r.paused || slices.ContainsFunc(r.running, (*member).paused)
}

// Remove takes a replica that has ended, or is about to, out of those that run.
func (r *replicas) Remove(gone *member) {
	r.paused = r.paused || gone.paused()
	kept := r.running[:0]
	for _, m := range r.running {
		if m != gone {
			kept = append(kept, m)
		}
	}
	r.running = kept
}

// Ends returns when a replica has ended by itself, as one that finds that another leads, with exit code 1.
func (m *member) Ends(d time.Duration) {
	m.tb.Helper()
	eventually(m.tb, d, "it ends by itself", func() error {
		if !m.endedByItself() {
			return errors.New("it runs")
		}
		return nil
	})
	m.ended = true
	var exit *exec.ExitError
	if err := m.process.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		m.tb.Errorf("it ended with %v, want exit code 1", err)
	}
}

// WaitStandbys returns when so many are in sync for this leader.
func (m *member) WaitStandbys(want int) {
	m.tb.Helper()
	eventually(m.tb, wide, fmt.Sprintf("%d standbys in sync", want), func() error {
		if n := m.Metrics().sum("kubeferry_standbys_in_sync"); n != float64(want) {
			return fmt.Errorf("%v", n)
		}
		return nil
	})
}

// SetAside returns the state files that the replicas have set aside.
func (r *replicas) SetAside(members ...*member) []string {
	r.tb.Helper()
	var all []string
	for _, m := range members {
		aside, err := filepath.Glob(filepath.Join(m.dir, "*.set-aside-*"))
		if err != nil {
			r.tb.Fatal(err)
		}
		all = append(all, aside...)
	}
	return all
}

// replicasConfig has each replica send to a path of its own.
func replicasConfig(namespace, url string) string {
	return hookConfig("[v1/configmaps, apps/v1/deployments]", "{include: ["+namespace+"]}", url+"/REPLICA")
}

// loaded are two replicas in sync, with a load on what they watch.
type loaded struct {
	*replicas
	hook    *webhooktest.Receiver
	watched *oracle.Oracle
	load    load.Options
	writing *loading
	read    reader
}

// startLoaded starts them. adjust changes how they run.
func startLoaded(tb testing.TB, prefix string, seed uint64, adjust ...func(*replicas)) *loaded {
	tb.Helper()
	config := plane(tb).Config()
	namespace := newNamespace(tb, prefix)
	kinds := []load.Resource{load.ConfigMaps(), load.Deployments()}
	l := &loaded{hook: webhooktest.Start(tb)}
	l.watched = startOracle(tb, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	l.replicas = newReplicas(tb, namespace, replicasConfig(namespace, l.hook.URL()))
	for _, change := range adjust {
		change(l.replicas)
	}
	l.Start()
	l.Leader() // before there is another one to choose
	l.Start()
	l.WaitInSync()
	l.load = load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: max(60, l.rate/2), Seed: seed, Rate: l.rate,
		Concurrency: max(4, l.rate/5), // a busy server takes long for each write
	}
	l.writing = startLoad(tb, config, l.load)
	l.read = hookReader(tb, l.hook, cloudEvents)
	return l
}

// Expect ends the load, and fails unless all of it arrives without a gap.
func (l *loaded) Expect() *oracle.Report {
	l.tb.Helper()
	report := expectAll(l.tb, l.watched, l.writing.End(), l.read, oracle.CompareOptions{})
	l.tb.Log(report)
	if report.Gaps > 0 {
		l.tb.Errorf("%d gaps", report.Gaps)
	}
	return report
}

// threePipelines adds a stream and a topic to what replicas send to. The function that it returns expects that each has all changes, in
// order and without a gap, and returns how many records are there again.
func threePipelines(tb testing.TB, r *replicas) (expect func(l *loaded) (repeated int)) {
	tb.Helper()
	bus, broker := natstest.Start(tb, nil), kafkatest.Start(tb)
	broker.CreateTopic("standby", 3)
	r.config = strings.NewReplacer(
		"pipelines: [", "pipelines: [{name: jetstream, sink: bus}, {name: kafka, sink: log}, ",
		"sinks: [", fmt.Sprintf(`sinks: [
  {name: bus, nats: {urls: [%q], subject: "k8s.{group}.{resource}.{namespace}.{name}", stream: {name: STANDBY, create: true}}},
  {name: log, kafka: {brokers: [%q], topic: standby}}, `, bus.URL(), broker.Addr()),
	).Replace(r.config)
	return func(l *loaded) (repeated int) {
		for name, read := range map[string]reader{"JetStream": streamReader(tb, bus, "STANDBY"), "Kafka": topicReader(tb, broker, cloudEvents, "standby")} {
			report := l.watched.Compare(read(), oracle.CompareOptions{})
			tb.Log(name, report)
			if err := report.Err(); err != nil || report.Gaps > 0 {
				tb.Errorf("%s: %d gaps, %v", name, report.Gaps, err)
			}
			repeated += len(report.Duplicates)
		}
		return repeated
	}
}

// TestLeaderKilled kills the leader with -9 under a load and removes its state directory, several times. The standby goes on,
// and the replacement starts empty. The soak has ten kills under 400 changes/s.
func TestLeaderKilled(t *testing.T) {
	kills := 3 // of the first leader, of its standby, and of one that started empty
	var others func(*loaded) (repeated int)
	r := startLoaded(t, "standby", 41, func(r *replicas) {
		if soaking() {
			kills, r.rate = 10, 500               // at most, so that over 400 are made while others use the processor too
			r.adjust = append(r.adjust, plain(t)) // the race detector takes the processor time that such a rate needs
		}
		others = threePipelines(t, r)
	})
	var killed []time.Time
	pulse := startPulse(t, nil)
	begun, before := time.Now(), len(r.read())
	for range kills {
		leader, _ := r.WaitInSync()
		more(t, r.read, 100)
		leader.WaitStandbys(1)
		killed = append(killed, time.Now())
		leader.Kill()
		if err := os.RemoveAll(leader.dir); err != nil {
			t.Fatal(err)
		}
		r.Remove(leader)
		r.Start()
	}
	leader, standbys := r.WaitInSync()
	more(t, r.read, 100)
	took := time.Since(begun)
	report := r.Expect()
	rate := float64(report.Distinct-before) / took.Seconds()
	t.Logf("%d kills in %v, about %.0f changes/s", kills, took.Round(time.Second), rate)
	if soaking() && rate < 400 {
		t.Errorf("kills under %.0f changes/s, want at least 400", rate)
	}
	leader.WaitWaiting(wide, 0)
	others(r)
	most := leader.Slowed(leaseDuration + 2*time.Second)
	for n, pause := range longestPauses(r.hook, pulse, killed, leaseDuration) {
		t.Logf("kill %d: the longest pause behind it took %v", n, pause)
		if pause > most {
			t.Errorf("kill %d: a pause of %v, want at most %v", n, pause, most)
		}
	}
	leader.WaitStandbys(len(standbys))
	if n := standbys[0].Metrics().sum("kubeferry_leader"); n != 0 {
		t.Errorf("kubeferry_leader is %v at a standby", n)
	}
	// It began behind the kill before the last one: it has seen itself take the Lease, and perhaps the one before.
	if n := leader.Metrics().sum("kubeferry_leader_transitions_total"); n < 1 || n > 2 {
		t.Errorf("kubeferry_leader_transitions_total is %v at the last leader", n)
	}
	if aside := r.SetAside(r.running...); len(aside) > 0 {
		t.Errorf("set aside: %v", aside)
	}
}

// TestLeaderStopped sends SIGTERM to the leader under a load, several times: it hands over, once the requests under way have ended.
func TestLeaderStopped(t *testing.T) {
	const takes = 500 * time.Millisecond
	stops := 3
	if soaking() {
		stops = 10
	}
	var others func(*loaded) (repeated int)
	r := startLoaded(t, "handover", 42, func(r *replicas) { others = threePipelines(t, r) })
	turns := []int{1}
	var stopped []time.Time
	pulse := startPulse(t, nil)
	for range stops {
		leader, standbys := r.WaitInSync()
		more(t, r.read, 50)
		leader.WaitStandbys(1)
		leader.checkLedgers()
		waitUnderWay(t, underWay(r.hook, len(turns), webhooktest.Answer{Status: http.StatusOK, After: takes}))
		begun, before := time.Now(), timesOf(t, standbys[0].process.Pid())
		stopped = append(stopped, begun)
		leader.Stop()
		// The leader waits 2 s for that, which a standby that gets no processor may need.
		slowed := timesOf(t, standbys[0].process.Pid()).since(before).slowed(time.Second) + pulse.Stalled(begun, time.Now())
		if len(leader.Logged("no standby has the last commit")) > 0 && slowed > 2*time.Second {
			t.Logf("no standby has the last commit; what takes a second takes %v", slowed)
			r.paused = true // what was under way is sent again
		} else {
			leader.WaitLogged(wide, "a standby has the last commit")
		}
		r.Remove(leader)
		r.Start()
		turns = append(turns, len(turns)+1)
	}
	leader, _ := r.WaitInSync()
	more(t, r.read, 50)
	repeated := len(r.Expect().Duplicates)
	leader.WaitWaiting(wide, 0)
	repeated += others(r)
	if repeated > min(5*stops, 20) && !r.Paused() {
		t.Errorf("%d records repeated", repeated)
	}
	expectTurns(t, r.hook, turns...)
	pauses := longestPauses(r.hook, pulse, stopped, leaseDuration)
	slices.Sort(pauses)
	t.Logf("the longest pauses behind each stop, beside the %v of a request, took %v", takes, pauses)
	if longest, most := pauses[stops-1], takes+leader.Slowed(1500*time.Millisecond); longest > most {
		t.Errorf("a pause of %v, want at most %v", longest, most)
	}
}

// longestPauses returns the longest time without an accepted record within d behind each of some moments, without what the machine did
// not run of it.
func longestPauses(hook *webhooktest.Receiver, pulse *pulse, moments []time.Time, d time.Duration) []time.Duration {
	var found []time.Duration
	arrivals := hookArrivals(hook)
	for _, moment := range moments {
		longest, last := time.Duration(0), moment
		for _, a := range arrivals {
			if a.at.After(moment) && last.Before(moment.Add(d)) {
				if gap := a.at.Sub(last); gap > longest {
					longest = max(longest, gap-pulse.Stalled(last, a.at))
				}
				last = a.at
			}
		}
		found = append(found, longest.Round(time.Millisecond))
	}
	return found
}

// TestServerAwayFromReplicas cuts both replicas off from the API server for several times the Lease's duration, and deletes the Lease
// once it is back: nobody restarts, and nothing is lost.
func TestServerAwayFromReplicas(t *testing.T) {
	beside(t)
	var server *proxy.TCP
	r := startLoaded(t, "cutoff", 44, func(r *replicas) {
		r.patient() // a leader whose Lease is deleted once it has lapsed may not go on
		server, r.kubeconfig = proxyOf(t, r.account)
		server.Come()
	})
	leader, _ := r.Leader()
	more(t, r.read, 100)
	server.Leave()
	begun := time.Now()
	leader.WaitLogged(wide, "the Lease could not be renewed in time")
	if soaking() {
		lasting(t, time.Until(begun.Add(time.Minute)))
	}
	lasting(t, 2*leaseDuration)
	server.Come()
	if again, _ := r.Leader(); again != leader {
		t.Error("another one leads, though the Lease never changed hands")
	}
	more(t, r.read, 100)
	held := objectsIn(t, plane(t).Config(), leases, r.namespace)
	leader, _ = r.WaitInSync()
	held.Delete("kubeferry")
	eventually(t, wide, "the leader makes it anew", func() error {
		_, err := held.client.Get(t.Context(), "kubeferry", metav1.GetOptions{})
		return err
	})
	if again, _ := r.WaitInSync(); again != leader {
		t.Error("another one leads")
	}
	more(t, r.read, 100)
	r.Expect()
	expectTurns(t, r.hook, 1)
}

// TestFromOneReplicaToTwoAndBack gives one kubeferry with a state directory a Lease and a standby, loses the leader with its directory, and
// lets the standby go on alone: each goes on where the one before was, without a gap or a snapshot.
func TestFromOneReplicaToTwoAndBack(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "upgrade")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	r := newReplicas(t, namespace, hookConfig("[v1/configmaps]", "{include: ["+namespace+"]}", hook.URL()))
	read := hookReader(t, hook, cloudEvents)
	alone := func(dir string) *exporter {
		e := startExporter(t, r.kubeconfig, fmt.Sprintf("stateDir: %q\n", dir)+r.config)
		e.WaitReady()
		return e
	}
	dir := t.TempDir()
	one := alone(dir)
	writing := startLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: 50, Seed: 50, Rate: r.rate, Concurrency: 8,
	})
	more(t, read, 50)
	one.Stop()

	leader := r.StartIn(dir)
	r.Leader()
	standby := r.Start()
	r.WaitInSync()
	more(t, read, 50)
	leader.Kill()
	if err := os.RemoveAll(leader.dir); err != nil {
		t.Fatal(err)
	}
	r.Remove(leader)
	r.Leader()
	more(t, read, 50)
	standby.Stop()

	alone(standby.dir)
	more(t, read, 50)
	report := expectAll(t, watched, writing.End(), read, oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	t.Log(report)
	if aside := r.SetAside(standby); report.Gaps > 0 || len(aside) > 0 {
		t.Errorf("%d gaps, set aside: %v", report.Gaps, aside)
	}
}

// TestExtendedOlderCopyWaits kills the standby and, later, the leader, and starts the one with the older copy first: it leaves the Lease to the
// one with the newer state. A third, empty one does so as well.
func TestExtendedOlderCopyWaits(t *testing.T) {
	beside(t)
	r := startLoaded(t, "older", 45, func(r *replicas) { r.staleWait = 10 * time.Minute }) // on a busy machine too they wait long enough
	leader, others := r.Leader()
	more(t, r.read, 100)
	older := others[0]
	older.Kill()
	more(t, r.read, 100)
	leader.WaitStandbys(0)
	r.WaitRenewed() // the Lease says so
	leader.Kill()
	r.running = nil
	empty := r.Start()
	late := r.StartIn(older.dir)
	empty.WaitLogged(wide, "standing by")
	late.WaitLogged(wide, "standing by")
	lasting(t, leaseDuration+time.Second)
	for name, m := range map[string]*member{"empty": empty, "older": late} {
		if m.Metrics().sum("kubeferry_leader") != 0 {
			t.Errorf("the %s one leads", name)
		}
	}
	newer := r.StartIn(leader.dir)
	if now, _ := r.WaitInSync(); now != newer {
		t.Error("another one leads than the one with the newest state")
	}
	r.Expect()
}

// TestExtendedLeaderKilledWhileTheSinkIsDown kills the leader with -9, and removes its directory, while its log holds what the sink does not
// take, most of it on disk only. The standby delivers all of it, in order. In the soak that are 100 MB, the sink is down for three
// minutes, 400 changes come in a second, and ten leaders die.
func TestExtendedLeaderKilledWhileTheSinkIsDown(t *testing.T) {
	if !soaking() { // its load would slow others
		beside(t)
	}
	changes, size, kills, rate, each := 1500, 2<<10, 1, 20, time.Duration(0)
	if soaking() {
		changes, size, kills, rate, each = 5000, 20<<10, 10, 400, 18*time.Second
	}
	config := plane(t).Config()
	namespace := newNamespace(t, "sinkdown")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	r := newReplicas(t, namespace, fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, backlog: {maxBytes: 512Ki}}]
sinks: [{name: hook, webhook: {url: %q}}]
`, namespace, hook.URL()))
	if soaking() {
		r.adjust = append(r.adjust, plain(t)) // as in TestLeaderKilled
	}
	r.Start()
	r.Leader()
	r.Start()
	r.WaitInSync()
	done := runLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: 200, Operations: changes, Size: size, Seed: 46, Concurrency: 8,
	})
	writing := startLoad(t, config, load.Options{
		Resources: kinds, Namespaces: []string{namespace}, Objects: 20, Rate: rate, Seed: 57, Prefix: "beside",
	})
	for range kills {
		begun := time.Now()
		leader, _ := r.Leader()
		leader.WaitWaiting(3*wide, uint64(changes))
		eventually(t, wide, "all of it waits in the log", func() error {
			if waiting := leader.Metrics().sum("kubeferry_log_bytes"); waiting < float64(changes*size) {
				return fmt.Errorf("%.0f bytes wait in the log, want at least %d", waiting, changes*size)
			}
			return nil
		})
		_, standbys := r.WaitInSync()
		committed := watchCommits(t, standbys[0].dir)
		committed.Wait(2) // the load beside goes on: what was in the log is in the second one
		committed.End()
		lasting(t, time.Until(begun.Add(each)))
		leader.WaitStandbys(1)
		leader.Kill()
		if err := os.RemoveAll(leader.dir); err != nil {
			t.Fatal(err)
		}
		r.Remove(leader)
		next, _ := r.Leader()
		if restored := next.Metrics().sum("kubeferry_deltas_restored_total"); restored < float64(changes) {
			t.Errorf("%v restored, want the whole log", restored)
		}
		r.Start()
		r.WaitInSync()
	}
	hook.Use(webhooktest.Accept())
	done.UIDs = append(done.UIDs, writing.End().UIDs...)
	report := expectAll(t, watched, done, hookReader(t, hook, cloudEvents), oracle.CompareOptions{Snapshot: oracle.SnapshotForbidden})
	t.Log(report)
	if report.Gaps > 0 || len(report.Duplicates) > 0 && !r.Paused() {
		t.Errorf("%d gaps, %d duplicates", report.Gaps, len(report.Duplicates))
	}
}
