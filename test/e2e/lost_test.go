package e2e_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestKilledAndHistoryRefused kills kubeferry with -9 under a load, and has etcd compacted while it is away: what it
// has stored then is older than what it sent. It reports so, and what it infers is in order for whoever goes by the sequence.
func TestKilledAndHistoryRefused(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "lost")
	kinds := []load.Resource{load.Events()} // etcd itself serves their watches
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	dir := t.TempDir()
	text := fmt.Sprintf("stateDir: %q\n", dir) + hookConfig("[v1/events]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	read := hookReader(t, hook, cloudEvents)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	committed := watchCommits(t, dir) // of one run after the other
	running := startLoad(t, config, load.Options{Resources: kinds, Namespaces: []string{namespace}, Seed: 31})
	committed.Wait(2) // before the first there is no history to refuse

	var secured []time.Time // by the last commit before each kill
	// A commit just before the kill leaves nothing to be behind with: again, then.
	for len(secured) < 3 || len(secured) < 15 && len(behind(read())) == 0 {
		more(t, read, 100)
		e.Kill()
		committed.End()
		secured = append(secured, committed.secured())
		seen := watched.Changes()
		eventually(t, wide, "changes while it is away", func() error {
			if n := watched.Changes() - seen; n < 150 {
				return fmt.Errorf("%d", n)
			}
			return nil
		})
		if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
			t.Fatal(err)
		}
		committed = watchCommits(t, dir)
		e = startExporter(t, plane(t).KubeconfigFile(), text)
		eventually(t, wide, "a gap", func() error {
			if gaps := e.Metrics().sum("kubeferry_watch_gaps_total"); gaps != 1 {
				return fmt.Errorf("%v gaps", gaps)
			}
			return nil
		})
		e.WaitReady()
		committed.Wait(2) // else the same gap record is sent once more
	}
	report := expectAll(t, watched, running.End(), read, oracle.CompareOptions{AllowGaps: true, AllowLost: true})
	t.Logf("killed %d times; %s", len(secured), report)

	records := read()
	late := behind(records)
	t.Logf("%d deletions carry a version older than one told before: %q", len(late), late)
	if len(late) == 0 {
		t.Error("whatever was acknowledged was committed before each kill")
	}
	expectLostGaps(t, hook, records, secured)
	unknown := func(r oracle.Record) bool {
		return slices.ContainsFunc(report.Unknowable, func(id string) bool { return strings.HasPrefix(id, clusterName+"/"+r.UID+"/") })
	}
	expectState(t, config, slices.DeleteFunc(slices.Clone(records), unknown), load.GVRs(kinds), namespace)
}

// behind are the inferred deletions that carry an older version than a record of the same object before.
func behind(records []oracle.Record) (ids []string) {
	told := map[string]uint64{}
	for _, r := range records {
		version, _ := strconv.ParseUint(r.ResourceVersion, 10, 64)
		if r.Inferred && r.Type == oracle.Deleted && version < told[r.UID] {
			ids = append(ids, r.ID)
		}
		told[r.UID] = max(told[r.UID], version)
	}
	return ids
}

// expectLostGaps fails unless there is a gap with the reason lost for each kill, from no earlier than what was acknowledged before the moment that the
// last commit before it secured.
func expectLostGaps(t *testing.T, hook *webhooktest.Receiver, records []oracle.Record, moments []time.Time) {
	t.Helper()
	gaps := gapsOf(records)
	if len(gaps) != len(moments) {
		t.Fatalf("%d gaps, killed %d times", len(gaps), len(moments))
	}
	for n, gap := range gaps {
		from, err := strconv.ParseUint(gap.From, 10, 64)
		if err != nil || gap.Reason != "lost" {
			t.Errorf("after kill %d comes %+v, want a gap with the reason lost", n, gap)
		}
		secured := uint64(0)
		for _, request := range hook.Requests() {
			if request.Status/100 != 2 || request.Ended.IsZero() || !request.Ended.Before(moments[n]) {
				continue
			}
			for _, part := range request.Records {
				r, err := cloudEvents(request.Header, part.Body)
				if err != nil {
					t.Fatal(err)
				}
				secured = max(secured, r.Sequence)
			}
		}
		if from < secured {
			t.Errorf("the gap after kill %d begins at %d, %d was acknowledged before the last commit began", n, from, secured)
		}
	}
}
