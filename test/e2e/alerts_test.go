package e2e_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// prometheus scrapes a kubeferry and evaluates the rules of the chart.
type prometheus struct {
	*alerts.Evaluator
	tb testing.TB
	at time.Time // of the last scrape
}

func newPrometheus(tb testing.TB, rules []alerts.Rule) *prometheus {
	return &prometheus{Evaluator: alerts.NewEvaluator(rules), tb: tb, at: time.Now()}
}

func documentedAlerts(tb testing.TB) []alerts.Rule {
	tb.Helper()
	root, err := programs.Root()
	if err != nil {
		tb.Fatal(err)
	}
	rules, err := alerts.Load(filepath.Join(root, "deploy", "chart", "files", "alerts.yaml"))
	if err != nil {
		tb.Fatal(err)
	}
	return rules
}

// Scrape takes one scrape half a minute after the last, and returns what fires.
func (p *prometheus) Scrape(m metrics) []string {
	p.tb.Helper()
	p.at = p.at.Add(30 * time.Second)
	firing, err := p.Evaluator.Scrape(p.tb.Context(), p.at, m)
	if err != nil {
		p.tb.Fatal(err)
	}
	return firing
}

// Hold scrapes the same samples for a while, and returns what fired at any time.
func (p *prometheus) Hold(m metrics, d time.Duration) (fired []string) {
	p.tb.Helper()
	for end := p.at.Add(d); p.at.Before(end); {
		fired = append(fired, p.Scrape(m)...)
	}
	slices.Sort(fired)
	return slices.Compact(fired)
}

// firesElsewhere are alerts that other tests have fire.
var firesElsewhere = []string{
	"KubeferryWatchNotReady", // TestRevokedRightShows
	"KubeferryStateFails",    // a full disk: fillDisk
	// Memory fills up in a pipeline that blocks. One that spills keeps memory free for other namespaces. The cases for promtool have the rule.
	"KubeferryBacklogFull",
}

// TestExtendedAlertsFire makes the faults that the alerts are about on a pair of replicas, and evaluates the rules on what Prometheus scrapes before
// and after. Its clock passes the time that a rule waits for; only a silent watch would take minutes in truth.
func TestExtendedAlertsFire(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "alerts")
	down, picky := webhooktest.Start(t), webhooktest.Start(t)
	r := newReplicas(t, namespace, fmt.Sprintf(`
shutdown: {grace: 1s}
deadLetters: {maxBytes: 16Mi}
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines:
  - {name: down, sink: down, filters: [{expr: 'object.metadata.name != "bad"'}], backlog: {maxBytes: 256Ki, maxDiskBytes: 1Mi}}
  - {name: picky, sink: picky, filters: [{expr: 'object.metadata.name in ["bad", "good"] && object.data.missing == ""'}]}
sinks:
  - {name: down, webhook: {url: %q}}
  - {name: picky, webhook: {url: %q}}
`, namespace, down.URL(), picky.URL()))
	gateway, kubeconfig := gatewayOf(t, r.account)
	r.kubeconfig, r.staleWait, r.adjust = kubeconfig, 5*time.Minute, []func(*process.Options){plain(t)}
	r.patient()
	r.Start()
	r.Leader()
	r.Start()
	leader, others := r.WaitInSync()
	rules := documentedAlerts(t)
	var calm, well metrics
	eventually(t, wide, "nothing fires", func() error { // a scrape may meet a copy that is just late
		calm, well = leader.Metrics(), metrics{}
		maps.Copy(well, scraped(calm, "leader"))
		maps.Copy(well, scraped(others[0].Metrics(), "standby"))
		if early := newPrometheus(t, rules).Hold(well, 10*time.Minute); len(early) > 0 {
			return fmt.Errorf("%q fire", early)
		}
		return nil
	})
	fired := map[string]bool{}
	fire := func(now metrics, want ...string) error {
		server := newPrometheus(t, rules)
		if early := server.Hold(well, 10*time.Minute); len(early) > 0 {
			t.Fatalf("%q fired before anything happened", early)
		}
		got := server.Hold(scraped(now, "leader"), 11*time.Minute)
		// Dead letters that find no room wait. On a slow machine this lasts until the alert about changes that wait.
		got = slices.DeleteFunc(got, func(alert string) bool {
			return strings.HasPrefix(alert, "KubeferryChangeWaits{") && strings.Contains(alert, `pipeline="picky"`) && !slices.Contains(want, alert)
		})
		slices.Sort(want)
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		for _, alert := range got {
			name, _, _ := strings.Cut(alert, "{")
			fired[name] = true
		}
		return nil
	}
	of := func(alert, labels string) string {
		return fmt.Sprintf(`%s{instance="leader", job="kubeferry", namespace="kubeferry"%s}`, alert, labels)
	}
	const inDown, inPicky = `, pipeline="down"`, `, pipeline="picky"`

	// Not later: a watch that waits for its pipelines is not silent.
	silent := maps.Clone(calm)
	for name := range silent {
		if strings.HasPrefix(name, "kubeferry_watch_last_activity_seconds{") {
			silent[name] += 301
		}
	}
	if err := fire(silent, fmt.Sprintf(`KubeferryWatchSilent{exported_namespace=%q, instance="leader", job="kubeferry", namespace="kubeferry", resource="v1/configmaps", source="s"}`, namespace)); err != nil {
		t.Errorf("the watch is silent: %v", err)
	}

	// One fault, one alert; the others go on.
	leader.leaves = true
	others[0].Kill()
	r.Remove(others[0])
	noStandby := of("KubeferryNoStandby", "")
	eventually(t, wide, "no standby is in sync", func() error { return fire(leader.Metrics(), noStandby) })
	objects := objectsIn(t, config, configMaps, namespace)
	picky.Use(func(r *webhooktest.Request) webhooktest.Answer {
		isBad := func(record webhooktest.Record) bool { return strings.Contains(string(record.Body), `"name":"bad"`) }
		if slices.ContainsFunc(r.Records, isBad) {
			return webhooktest.Answer{Status: http.StatusUnprocessableEntity}
		}
		return webhooktest.Answer{Status: http.StatusOK}
	})
	objects.Create("bad", data(""))
	objects.Create("good", data(""))
	dead := []string{noStandby, of("KubeferryFilterFails", inPicky), of("KubeferryDeadLetter", inPicky+`, reason="rejected"`)}
	eventually(t, wide, "a filter fails, and a record is refused", func() error { return fire(leader.Metrics(), dead...) })
	for n := range 20 { // where nothing is delivered, what is refused waits, since the sink may be wrong
		objects.Patch("bad", data(noise(900<<10)))
		objects.Patch("good", data(strconv.Itoa(n)))
	}
	dead = append(dead, of("KubeferryDeadLettersFull", ""))
	eventually(t, 2*wide, "the dead letters are full", func() error { return fire(leader.Metrics(), dead...) })
	gateway.Use(watches("configmaps", &proxy.Fault{Status: refused}))
	gateway.Cut()
	eventually(t, wide, "the refusal", func() error {
		if leader.Metrics().sum("kubeferry_watch_gaps_total") == 0 {
			return errors.New("no gap")
		}
		return nil
	})
	gateway.Use(nil)
	objects.Create("opened", data("")) // when it has come, a watch is open again, or will be at once
	eventually(t, wide, "what follows", func() error {
		if !slices.ContainsFunc(down.Accepted(), func(r webhooktest.Record) bool { return strings.Contains(string(r.Body), `"name":"opened"`) }) {
			return errors.New("not yet")
		}
		return nil
	})
	gap := append(dead, fmt.Sprintf(`KubeferryHistoryRefused{exported_namespace=%q, instance="leader", job="kubeferry", namespace="kubeferry", resource="v1/configmaps", source="s"}`, namespace))
	eventually(t, wide, "history is refused", func() error { return fire(leader.Metrics(), gap...) })
	down.Use(webhooktest.Status(http.StatusServiceUnavailable))
	runLoad(t, config, load.Options{Resources: []load.Resource{load.ConfigMaps()}, Namespaces: []string{namespace}, Objects: 20, Operations: 300, Size: 12 << 10, Seed: 71, Concurrency: 8})
	full := append(gap, of("KubeferrySinkFails", inDown), of("KubeferryLogFull", inDown))
	eventually(t, wide, "the sink is away, and the disk nearly full", func() error { return fire(leader.Metrics(), full...) })

	// Killed, and started while the API server is away. Once that is back, it goes on with what is old by now.
	leader.Kill()
	r.Remove(leader)
	moveLog(t, leader.dir, "down", -10*time.Minute)
	gateway.Use(func(*http.Request) *proxy.Fault { return &proxy.Fault{Reset: true} })
	leader = r.StartIn(leader.dir)
	leader.leaves = true
	eventually(t, wide, "nobody leads", func() error {
		return fire(leader.Metrics(), `KubeferryNoLeader{job="kubeferry", namespace="kubeferry"}`)
	})
	gateway.Use(nil)
	old := []string{noStandby, of("KubeferryDeadLettersFull", ""), of("KubeferryChangeWaits", inDown), of("KubeferrySinkFails", inDown), of("KubeferryLogFull", inDown)}
	eventually(t, 2*wide, "a change has waited for long", func() error { return fire(leader.Metrics(), old...) })

	for _, rule := range rules {
		if !fired[rule.Alert] && !slices.Contains(firesElsewhere, rule.Alert) {
			t.Errorf("no fault has %s fire", rule.Alert)
		}
	}
}

// scraped returns samples with the labels that Prometheus adds to those of a target.
func scraped(m metrics, instance string) metrics {
	added := metrics{}
	for name, value := range m {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if labels != "" {
			labels = strings.TrimPrefix(strings.ReplaceAll(","+labels, `,namespace="`, `,exported_namespace="`), ",") + ","
		}
		added[fmt.Sprintf(`%s{%sinstance=%q,job="kubeferry",namespace="kubeferry"}`, metric, labels, instance)] = value
	}
	return added
}
