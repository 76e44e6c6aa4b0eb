package e2e_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// promisedInterval is how often a commit is written under load, as docs/architecture.md says.
const promisedInterval = 200 * time.Millisecond

// commits are those of one run of kubeferry, as its state file shows them from outside: bbolt numbers its
// transactions, and a number in the file is what a kill leaves.
type commits struct {
	tb      testing.TB
	file    string
	started time.Time
	pulse   *pulse
	times   processorTimes // of kubeferry, once measured

	mu    sync.Mutex // guards what follows
	seen  []seenCommit
	last  time.Time // of the looks
	ended time.Time // zero while it runs
}

// seenCommit is a transaction, between two looks at the file: one that did not show it yet, and one that did.
type seenCommit struct {
	number        uint64
	before, shown time.Time
}

// watchCommits looks at the state file from now on, before kubeferry is started with it.
func watchCommits(tb testing.TB, dir string) *commits {
	tb.Helper()
	c := &commits{tb: tb, file: filepath.Join(dir, "kubeferry.db"), started: time.Now()}
	c.last = c.started
	c.look()
	c.pulse = startPulse(tb, c.look)
	return c
}

// look notes whether the file has another transaction.
func (c *commits) look() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	number, err := transaction(c.file)
	if err != nil {
		if !os.IsNotExist(err) {
			c.tb.Error(err)
		}
		return
	}
	n := len(c.seen)
	if n > 0 && number < c.seen[n-1].number {
		c.seen, n = nil, 0 // the file was made smaller at the start
	}
	if n == 0 || number > c.seen[n-1].number {
		c.seen = append(c.seen, seenCommit{number, c.last, now})
	}
	c.last = now
}

// Measure notes how long the kubeferry of the run has waited for a processor. A process that has ended does not show it.
func (c *commits) Measure(e *exporter) {
	c.tb.Helper()
	c.times = timesOf(c.tb, e.process.Pid())
}

// End takes the last look, at what a killed kubeferry has left.
func (c *commits) End() {
	c.pulse.Stop()
	c.look()
	c.ended = time.Now()
}

// Number is that of the last transaction; 0 if there is none.
func (c *commits) Number() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) == 0 {
		return 0
	}
	return c.seen[len(c.seen)-1].number
}

// Wait returns when n more commits are complete.
func (c *commits) Wait(n uint64) {
	c.tb.Helper()
	want := c.Number() + n
	eventually(c.tb, wide, fmt.Sprintf("%d commits", n), func() error {
		if got := c.Number(); got < want {
			return fmt.Errorf("at %d, want %d", got, want)
		}
		return nil
	})
}

// secured is a moment before which everything that was settled is in the last commit. That begins to collect after the
// one before it is complete, so nothing here depends on how long a commit takes, or on how late a look comes.
func (c *commits) secured() time.Time {
	last := c.Number()
	for _, s := range c.seen {
		if s.number+1 >= last {
			return s.before
		}
	}
	return c.started
}

// since counts the commits that were complete after a moment.
func (c *commits) since(moment time.Time) uint64 {
	for _, s := range c.seen {
		if s.shown.After(moment) {
			return c.Number() - s.number + 1
		}
	}
	return 0
}

// transaction reads the number of a bbolt file's last transaction: the higher one of its two meta pages, whose layout
// is the same in all versions of the format.
func transaction(file string) (uint64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }()
	const magic, magicAt, numberAt, size = 0xED0CDAED, 16, 64, 72
	highest := uint64(0)
	for page := range int64(2) {
		var meta [size]byte
		if _, err := f.ReadAt(meta[:], page*int64(os.Getpagesize())); err != nil {
			return 0, nil //nolint:nilerr // a file that is being made
		}
		if binary.NativeEndian.Uint32(meta[magicAt:]) != magic {
			return 0, fmt.Errorf("%s is no bbolt file", file)
		}
		highest = max(highest, binary.NativeEndian.Uint64(meta[numberAt:]))
	}
	return highest, nil
}

// arrival is a record that a sink took.
type arrival struct {
	id string
	at time.Time
}

func hookArrivals(hook *webhooktest.Receiver) []arrival {
	var all []arrival
	for _, request := range hook.Requests() {
		for _, record := range request.Records {
			if request.Status/100 == 2 {
				all = append(all, arrival{record.ID, request.Time})
			}
		}
	}
	return all
}

// topicArrivals goes by the broker's time of a record, which must be when it was stored.
func topicArrivals(tb testing.TB, broker *kafkatest.Broker, topic string) []arrival {
	tb.Helper()
	records, err := broker.ReadAll(within(tb, wide), topic)
	if err != nil {
		tb.Fatal(err)
	}
	var all []arrival
	for _, r := range records {
		parsed, err := cloudEvents(nil, r.Value)
		if err != nil {
			tb.Fatal(err)
		}
		if r.Partition > 0 && (parsed.Type == oracle.Mark || parsed.Type == oracle.Gap) {
			continue // of each partition one is no repetition
		}
		// It has no parts of a millisecond.
		all = append(all, arrival{parsed.ID, r.Timestamp.Add(time.Millisecond)})
	}
	return all
}

// expectFewRepeats checks what arrived again for each run that was killed: only what the sink had taken after the run's
// last commit began, and of what was taken earlier, no more than what was under way at that moment: the sink had it, and
// kubeferry had not read its answer yet. It returns how many there are.
func expectFewRepeats(tb testing.TB, sink string, arrivals []arrival, runs []*commits, underWay int) int {
	tb.Helper()
	before := map[string]time.Time{}
	repeated, early, taken := make([]int, len(runs)), make([]int, len(runs)), make([]int, len(runs))
	total := 0
	for _, a := range arrivals {
		if run := runAt(runs, a.at); !a.at.Before(runs[run].secured()) {
			taken[run]++
		}
		previous, again := before[a.id]
		before[a.id] = a.at
		if !again {
			continue
		}
		total++
		run := runAt(runs, previous)
		repeated[run]++
		if previous.Before(runs[run].secured()) {
			early[run]++
		}
	}
	for n, run := range runs {
		tb.Logf("%s: run %d: %d commits, %d records taken in the last %v, %d repeated, %d of them taken before", sink, n,
			run.since(run.started), taken[n], run.ended.Sub(run.secured()).Round(time.Millisecond), repeated[n], early[n])
		most := underWay
		if n > 0 { // a busy sink may take only now what the killed run before had under way
			most *= 2
		}
		if early[n] > most {
			tb.Errorf("%s: %d records of run %d arrived again although they were taken before its last commit; %d can have been under way",
				sink, early[n], n, most)
		}
	}
	return total
}

// runAt is the run during which something happened.
func runAt(runs []*commits, at time.Time) int {
	n := 0
	for n+1 < len(runs) && !runs[n+1].started.After(at) {
		n++
	}
	return n
}

// expectFrequentCommits checks that commits were written about as often as they should, from the first arrival of each
// run to its end, which must be measured. Moments in which the machine ran nothing do not count, nor does the part of the
// time that kubeferry waits for a processor; and commits may be slow: late by as much again, and half of that.
func expectFrequentCommits(tb testing.TB, arrivals []arrival, runs []*commits) {
	tb.Helper()
	var busy time.Duration
	written := uint64(0)
	for n, run := range runs {
		for _, a := range arrivals {
			if runAt(runs, a.at) == n {
				lasted := run.ended.Sub(a.at) - run.pulse.Stalled(a.at, run.ended)
				busy += time.Duration(float64(lasted) / run.times.slowed(time.Second).Seconds())
				written += run.since(a.at)
				break
			}
		}
	}
	tb.Logf("%d commits in %v", written, busy.Round(time.Millisecond))
	if most := busy / (promisedInterval * 5 / 2); written < uint64(most) {
		tb.Errorf("%d commits in %v, want one every %v", written, busy, promisedInterval)
	}
}
