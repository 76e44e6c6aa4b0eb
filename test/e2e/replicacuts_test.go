package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// turn is a stretch of requests of one replica.
type turn struct {
	replica  int
	requests []webhooktest.Request
}

// turnsAt returns whose requests came, in the order in which they came.
func turnsAt(tb testing.TB, hook *webhooktest.Receiver) []turn {
	tb.Helper()
	requests := hook.Requests()
	slices.SortStableFunc(requests, func(a, b webhooktest.Request) int { return a.Time.Compare(b.Time) })
	var turns []turn
	for _, request := range requests {
		replica, err := strconv.Atoi(strings.TrimPrefix(request.Path, "/"))
		if err != nil {
			tb.Fatal(err)
		}
		if n := len(turns); n == 0 || turns[n-1].replica != replica {
			turns = append(turns, turn{replica: replica})
		}
		last := &turns[len(turns)-1]
		last.requests = append(last.requests, request)
	}
	return turns
}

// order returns whose turns these are.
func order(turns []turn) (replicas []int) {
	for _, turn := range turns {
		replicas = append(replicas, turn.replica)
	}
	return replicas
}

// expectTurns fails unless the replicas handed over in this order, each after the requests of the one before had ended.
func expectTurns(tb testing.TB, hook *webhooktest.Receiver, want ...int) {
	tb.Helper()
	turns := turnsAt(tb, hook)
	var ended time.Time
	for _, turn := range turns {
		if begun := turn.requests[0].Time; begun.Before(ended) {
			tb.Errorf("replica %d begins %v before the last request of the one before has ended", turn.replica, ended.Sub(begun))
		}
		for _, request := range turn.requests {
			if request.Ended.IsZero() {
				tb.Errorf("a request of replica %d has not ended", turn.replica)
			}
			if request.Ended.After(ended) {
				ended = request.Ended
			}
		}
	}
	if got := order(turns); !slices.Equal(got, want) {
		tb.Errorf("the replicas handed over in the order %v, want %v", got, want)
	}
}

// underWay answers a replica's requests as a, those of the others at once, and counts the former.
func underWay(hook *webhooktest.Receiver, replica int, a webhooktest.Answer) *atomic.Int64 {
	var count atomic.Int64
	hook.Use(func(r *webhooktest.Request) webhooktest.Answer {
		if r.Path != fmt.Sprintf("/%d", replica) {
			return webhooktest.Answer{Status: http.StatusOK}
		}
		count.Add(1)
		return a
	})
	return &count
}

func waitUnderWay(tb testing.TB, count *atomic.Int64) {
	tb.Helper()
	eventually(tb, wide, "a batch is in flight", func() error {
		if count.Load() == 0 {
			return fmt.Errorf("none")
		}
		return nil
	})
}

// TestExtendedLeaderFrozen stops the leader's process for several times the Lease's duration. When it goes on, it finds that another one leads and
// ends, without having begun a delivery.
func TestExtendedLeaderFrozen(t *testing.T) {
	beside(t)
	t.Run("between deliveries", func(t *testing.T) { leaderFrozen(t, "frozen-idle", 43, false) })
	t.Run("with batches in flight", func(t *testing.T) { leaderFrozen(t, "frozen", 44, true) })
}

// leaderFrozen stops it while all of its calls are in flight, or none: then it has changes to send and calls are free when it goes on. What
// is in flight the receiver takes after another one leads: these are repetitions then.
func leaderFrozen(t *testing.T, namespace string, seed uint64, inFlight bool) {
	t.Helper()
	r := startLoaded(t, namespace, seed, (*replicas).patient) // a busy machine must not add turns
	frozen, _ := r.Leader()
	more(t, r.read, 100)
	if !inFlight { // there is nothing to send when it is stopped: what is begun then would be a turn when it goes on
		expectAll(t, r.watched, r.writing.End(), r.read, oracle.CompareOptions{})
		eventually(t, wide, "the marks of both watches", func() error {
			if marks := marksOf(t, r.hook); len(marks) < 2 {
				return fmt.Errorf("there are %d", len(marks))
			}
			return nil
		})
		frozen.WaitWaiting(wide, 0)
		frozen.process.Signal(syscall.SIGSTOP)
		r.load.Prefix = "later"
		r.writing = startLoad(t, plane(t).Config(), r.load)
	} else {
		next := make(chan struct{})
		begins := sync.OnceFunc(func() { close(next) })
		var held atomic.Int64
		r.hook.Use(func(request *webhooktest.Request) webhooktest.Answer {
			if request.Path != "/1" {
				begins()
				return webhooktest.Answer{Status: http.StatusOK}
			}
			held.Add(1)
			return webhooktest.Answer{Status: http.StatusOK, Held: next}
		})
		waitUnderWay(t, &held)
		for last := int64(0); last < held.Load(); { // until none can begin: one that is written when the process goes on would be a turn
			last = held.Load()
			lasting(t, time.Second)
		}
		frozen.process.Signal(syscall.SIGSTOP)
	}
	begun := time.Now()
	r.Remove(frozen)
	r.Leader()
	more(t, r.read, 100)
	lasting(t, time.Until(begun.Add(2*r.leaseDuration)))
	frozen.process.Signal(syscall.SIGCONT)
	frozen.Ends(wide)
	r.StartIn(frozen.dir) // as the kubelet does
	r.WaitInSync()
	report := r.Expect()

	late := 0
	turns := turnsAt(t, r.hook)
	if got := order(turns); !slices.Equal(got, []int{1, 2}) { // there would be more if the frozen one began a request when it goes on
		t.Fatalf("the replicas handed over in the order %v, want [1 2]", got)
	}
	second := turns[1].requests[0].Time
	for _, turn := range turns {
		for _, request := range turn.requests {
			if turn.replica != 1 || request.Status == 0 || !request.Ended.After(second) {
				continue
			}
			for _, record := range request.Records {
				if late++; !slices.Contains(report.Duplicates, record.ID) {
					t.Errorf("%s arrived late, and from the frozen one only", record.ID)
				}
			}
		}
	}
	if late == 0 && inFlight {
		t.Error("no batch in flight arrived after the next one had begun")
	}
	t.Logf("%d records arrived late", late)
}

// TestExtendedLeaderCutOffFromTheServer cuts the leader off from the API server only, while batches hang at the receiver: they are
// cancelled before the standby delivers, though that is connected all the time. When the leader is back, it finds that another one leads.
func TestExtendedLeaderCutOffFromTheServer(t *testing.T) {
	beside(t)
	var server *proxy.TCP
	r := startLoaded(t, "severed", 47, func(r *replicas) {
		direct := r.kubeconfig
		r.starting = func(number int) {
			if r.kubeconfig = direct; number == 1 {
				server, r.kubeconfig = proxyOf(t, r.account)
				server.Come()
			}
		}
	})
	first, _ := r.Leader()
	more(t, r.read, 100)
	waitUnderWay(t, underWay(r.hook, 1, webhooktest.Answer{Hang: true}))
	server.Stall()
	r.Remove(first)
	r.Leader()
	more(t, r.read, 100)
	server.Come() // what was held goes through: late renewals too
	first.Ends(wide)
	r.StartIn(first.dir)
	r.WaitInSync()
	r.Expect()
	expectTurns(t, r.hook, 1, 2)
}

// TestExtendedLeaderCutOffFromItsStandby cuts the connection between the two without a word, until both have noticed: the leader leads on.
// Once it is back the standby is in sync again. Then the leader dies in the first moment of another cut.
func TestExtendedLeaderCutOffFromItsStandby(t *testing.T) {
	beside(t)
	var way *proxy.TCP
	r := startLoaded(t, "asunder", 48, func(r *replicas) {
		r.staleWait = 2 * leaseDuration // for a machine so busy that the leader notices the second cut before it dies
		direct := r.replication
		r.starting = func(number int) {
			r.replication = direct
			switch number {
			case 1:
				way = proxy.NewTCP(t, "")
				r.replication = fmt.Sprintf(`{listen: "127.0.0.1:0", advertise: %q}`, way.Addr())
			case 2:
				leader, _ := r.Leader()
				address, _ := leader.WaitLogged(wide, "serving standbys")["address"].(string)
				way.ForwardTo(address)
				way.Come()
			}
		}
	})
	leader, others := r.Leader()
	way.Stall()
	eventually(t, wide, "both have noticed", func() error {
		if n := leader.Metrics().sum("kubeferry_standbys_in_sync"); n != 0 {
			return fmt.Errorf("%v standbys in sync", n)
		}
		if code, _ := others[0].Get("/readyz"); code == http.StatusOK {
			return fmt.Errorf("the standby is ready")
		}
		return nil
	})
	more(t, r.read, 100)
	lagging := others[0].Metrics().sum("kubeferry_replication_lag_seconds")
	if lagging < 1 { // 100 changes at the rate of the load
		t.Errorf("the standby's copy lags by %v s while it is cut off", lagging)
	}
	way.Come()
	if again, _ := r.WaitInSync(); again != leader {
		t.Error("another one leads")
	}
	leader.WaitStandbys(1)
	eventually(t, wide, "the lag is over", func() error {
		for _, m := range r.running {
			if lag := m.Metrics().sum("kubeferry_replication_lag_seconds"); lag >= lagging {
				return fmt.Errorf("%v s", lag)
			}
		}
		return nil
	})
	more(t, r.read, 100)
	r.WaitRenewed() // the Lease says so
	way.Stall()
	more(t, r.read, 20)
	leader.Kill()
	r.Remove(leader)
	second, _ := r.Leader()
	more(t, r.read, 100)
	if len(second.Logged("with an older state than the last leader had")) > 0 { // a busy machine: the leader noticed this cut too
		expectAll(t, r.watched, r.writing.End(), r.read, oracle.CompareOptions{AllowGaps: true, AllowLost: true})
		return
	}
	if report := r.Expect(); report.Inferred > 0 {
		t.Errorf("%d inferred", report.Inferred)
	}
	expectTurns(t, r.hook, 1, 2)
}

// TestExtendedEtcdCompactedWhileServerAway cuts both replicas off from the API server, and compacts etcd again and again meanwhile. Neither
// restarts; the API server has forgotten what happened to Events, which its watch cache does not hold: a gap record says so.
func TestExtendedEtcdCompactedWhileServerAway(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "forgotten")
	kinds := []load.Resource{load.ConfigMaps(), load.Events()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	r := newReplicas(t, namespace, hookConfig("[v1/configmaps, v1/events]", "{include: ["+namespace+"]}", hook.URL()+"/REPLICA"))
	var server *proxy.TCP
	server, r.kubeconfig = proxyOf(t, r.account)
	server.Come()
	r.Start()
	r.Leader()
	r.Start()
	leader, _ := r.WaitInSync()
	writing := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Objects: 60, Seed: 56})
	read := hookReader(t, hook, cloudEvents)
	more(t, read, 100)
	server.Leave()
	compacted, compactions := keepCompacting(t, 500*time.Millisecond, nil)
	begun := time.Now()
	leader.WaitLogged(wide, "the Lease could not be renewed in time")
	if soaking() {
		lasting(t, time.Until(begun.Add(time.Minute)))
	}
	lasting(t, leaseDuration)
	eventually(t, wide, "etcd is compacted", func() error {
		if n := compacted(); n < 2 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	n := compactions()
	server.Come()
	if again, _ := r.WaitInSync(); again != leader {
		t.Error("another one leads, though the Lease never changed hands")
	}
	more(t, read, 100)
	report := expectAll(t, watched, writing.End(), read, oracle.CompareOptions{AllowGaps: true})
	t.Logf("%d compactions; %v", n, report)
	if n < 2 || report.Gaps == 0 {
		t.Errorf("%d compactions, %d gaps", n, report.Gaps)
	}
	expectTurns(t, hook, 1)
}
