package checkpoint_test

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// tapped is what a leader's store sends.
type tapped struct {
	stamps  []checkpoint.Stamp
	changes [][]checkpoint.Changes
}

func (l *tapped) tap(stamp *checkpoint.Stamp, changes []checkpoint.Changes) {
	l.stamps, l.changes = append(l.stamps, *stamp), append(l.changes, changes)
}

func openReplica(t testing.TB, dir string) (*checkpoint.Replica, *[]string) {
	t.Helper()
	var reports []string
	r, err := checkpoint.OpenReplica(dir, func(message string, err error) { reports = append(reports, fmt.Sprint(message, err)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, &reports
}

// someCommit changes watches, logs and dead letters of a store, small numbers of each, so that keys come again.
func someCommit(t testing.TB, random *rand.Rand, seq *uint64) *checkpoint.Commit {
	c := &checkpoint.Commit{}
	pick := func(n int) int { return random.IntN(n) }
	for w := range 3 {
		if pick(2) == 0 {
			continue
		}
		change := delta.WatchChange{Watch: fmt.Sprint("w", w), Meta: fmt.Appendf(nil, `{"position":"%d"}`, pick(1000))}
		for range pick(2) * pick(20) {
			k := delta.Known{Namespace: "n", Name: fmt.Sprint(pick(40)), Version: delta.NewVersion("u", fmt.Sprint(pick(1000)))}
			if pick(3) == 0 {
				k.Retained, k.Previous = true, []byte(strings.Repeat("x", pick(300)))
			}
			if pick(4) == 0 {
				change.Remove = append(change.Remove, delta.Known{Namespace: "n", Name: k.Name})
			} else if !slices.ContainsFunc(change.Put, func(o delta.Known) bool { return o.Name == k.Name }) {
				change.Put = append(change.Put, k)
			}
		}
		c.Watches = append(c.Watches, change)
	}
	for p := range 2 {
		change := delta.LogChange{Pipeline: fmt.Sprint("p", p)}
		for range pick(5) {
			*seq++
			change.Append = append(change.Append, inFlow(entry(t, *seq)))
		}
		for range pick(5) {
			change.Remove = append(change.Remove, keyInFlow(uint64(pick(int(*seq)+1))))
			change.Attempts = append(change.Attempts, delta.Attempts{Seq: uint64(pick(int(*seq) + 1)), Attempts: 3, Failed: time.Unix(9, 0)})
		}
		if pick(10) == 0 {
			change.Redo, change.From = true, uint64(pick(int(*seq)+1))
			change.Append = nil
		}
		if !change.Empty() {
			c.Logs = append(c.Logs, change)
		}
	}
	if pick(4) == 0 {
		c.DropWatches, c.DropLogs = []string{fmt.Sprint("w", pick(3))}, []string{fmt.Sprint("p", pick(2))}
	}
	if pick(3) == 0 {
		*seq++
		c.DeadLetters.Append = []checkpoint.DeadLetter{{Seq: *seq, Letter: []byte(`{"a":1}`)}}
		c.DeadLetters.Remove = []uint64{uint64(pick(int(*seq) + 1))}
	}
	return c
}

// content is all that a file holds.
func content(t testing.TB, path string) []string {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var lines []string
	err = db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error {
			lines = append(lines, string(name))
			return b.ForEach(func(key, value []byte) error {
				lines = append(lines, fmt.Sprintf("%s/%q=%q", name, key, value))
				return nil
			})
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

// TestCopyEqualsTheState copies a state in small ranges while commits change it, and follows further ones: what is in the copy is what
// is in the leader's file, key by key. Of a commit that failed, and is on disk all the same, it gets what the next commit has.
func TestCopyEqualsTheState(t *testing.T) {
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		leaderDir, standbyDir := t.TempDir(), t.TempDir()
		s, _ := open(t, leaderDir)
		seq, sent := uint64(0), &tapped{}
		commit := func() {
			t.Helper()
			c := someCommit(t, random, &seq)
			redo := slices.ContainsFunc(c.Logs, func(l delta.LogChange) bool { return l.Redo }) // which a real one does only of what no standby has
			for fails := !redo && random.IntN(3) == 0; ; fails = false {
				before := len(sent.changes)
				if err := s.Commit(c); err != nil {
					t.Fatal(err)
				}
				if !fails {
					return
				}
				sent.changes, sent.stamps = sent.changes[:before], sent.stamps[:before] // it failed, is on disk all the same, and is made again
			}
		}
		for range 5 {
			commit()
		}
		s.Lead(checkpoint.Stamp{Lineage: "l"}.Begin(7), sent.tap)
		commit()
		r, reports := openReplica(t, standbyDir)
		if err := r.BeginCopy(); err != nil {
			t.Fatal(err)
		}
		applied := len(sent.changes)
		catchUp := func() {
			t.Helper()
			for ; applied < len(sent.changes); applied++ {
				if err := r.Apply(sent.changes[applied]); err != nil {
					t.Fatal(err)
				}
			}
		}
		for at, first := (*checkpoint.Range)(nil), true; first || at != nil; first = false {
			catchUp()
			for range random.IntN(3) { // on disk before the range is read, and sent behind it
				commit()
			}
			changes, next, _, err := s.ReadRange(at, 1+random.IntN(2000))
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Apply([]checkpoint.Changes{changes}); err != nil {
				t.Fatal(err)
			}
			at = next
		}
		catchUp()
		if err := r.EndCopy(); err != nil {
			t.Fatal(err)
		}
		for range 5 {
			commit()
			catchUp()
		}
		if got, want := r.Info().Replica, sent.stamps[len(sent.stamps)-1]; got == nil || got.Compare(want) != 0 || got.Lineage != "l" || got.Term != 7 {
			t.Errorf("the copy is at %+v, want %+v", got, want)
		}
		if err := errors.Join(r.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		got, want := content(t, filepath.Join(standbyDir, "kubeferry.db")), content(t, filepath.Join(leaderDir, "kubeferry.db"))
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: the copy differs:\n%s\nwant:\n%s", seed, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if len(*reports) > 0 {
			t.Error(*reports)
		}
		copied, _ := open(t, standbyDir) // a leader's start finds nothing wrong with it
		if copied.Info().Replica.Commit != sent.stamps[len(sent.stamps)-1].Commit {
			t.Errorf("%+v", copied.Info())
		}
	}
}

// TestFileIsReplaced replaces a former file by a copy. It is kept beside the new one if it holds what the new one may lack.
func TestFileIsReplaced(t *testing.T) {
	log := []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{entry(t, 1)}}}
	for _, test := range []struct {
		name          string
		former, newer checkpoint.Stamp // each gets one commit more
		waiting       bool
		aside         bool
	}{
		{"an earlier commit of the term", checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 5}, checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 9}, true, false},
		{
			"the next leader had it",
			checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 5},
			checkpoint.Stamp{Lineage: "l", Term: 4, Commit: 9, Began: []checkpoint.TermStart{{3, 0}, {4, 6}}},
			true, false,
		},
		{
			"the next leader did not have it",
			checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 6},
			checkpoint.Stamp{Lineage: "l", Term: 4, Commit: 9, Began: []checkpoint.TermStart{{3, 0}, {4, 6}}},
			true, true,
		},
		{
			"nothing waits in it",
			checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 6},
			checkpoint.Stamp{Lineage: "l", Term: 4, Commit: 9, Began: []checkpoint.TermStart{{3, 0}, {4, 6}}},
			false, false,
		},
		{
			"the next leader began with a copy of the term before",
			checkpoint.Stamp{Lineage: "l", Term: 4, Commit: 5, Began: []checkpoint.TermStart{{3, 0}, {4, 4}}},
			checkpoint.Stamp{Lineage: "l", Term: 5, Commit: 9, Began: []checkpoint.TermStart{{3, 0}, {5, 8}}},
			true, true,
		},
		{"of another lineage", checkpoint.Stamp{Lineage: "k", Term: 3, Commit: 5}, checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 9}, true, true},
		{"of a single replica", checkpoint.Stamp{}, checkpoint.Stamp{Lineage: "l", Term: 3, Commit: 9}, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			former, leader := t.TempDir(), t.TempDir()
			write := func(dir string, stamp checkpoint.Stamp, logs []delta.LogChange) *checkpoint.Store {
				s, _ := open(t, dir)
				if stamp.Lineage != "" {
					s.Lead(stamp, new(tapped).tap)
				}
				info := s.Info()
				if err := s.Commit(&checkpoint.Commit{Info: &info, Logs: logs}); err != nil {
					t.Fatal(err)
				}
				return s
			}
			logs := log
			if !test.waiting {
				logs = nil
			}
			if err := write(former, test.former, logs).Close(); err != nil {
				t.Fatal(err)
			}
			s := write(leader, test.newer, nil)
			r, reports := openReplica(t, former)
			gone := func() error { return os.Remove(filepath.Join(former, "kubeferry.db.copy")) }
			if err := tryCopy(s, r, gone); !errors.Is(err, fs.ErrNotExist) || (r.Info().Format == 0) != test.aside {
				t.Errorf("without a new file: %v, %+v", err, r.Info())
			}
			copyAll(t, s, r)
			aside, err := filepath.Glob(filepath.Join(former, "*.set-aside-*"))
			if err != nil || len(aside) > 1 || len(aside) == 1 != test.aside || len(*reports) != len(aside) {
				t.Fatalf("set aside: %v %v, reports %v", aside, err, *reports)
			}
			if test.aside && !strings.Contains((*reports)[0], "1 undelivered entries") {
				t.Error(*reports)
			}
			if r.Info().Replica.Lineage != "l" {
				t.Errorf("%+v", r.Info())
			}
		})
	}
}

func copyAll(t testing.TB, s *checkpoint.Store, r *checkpoint.Replica) {
	t.Helper()
	if err := tryCopy(s, r); err != nil {
		t.Fatal(err)
	}
}

func tryCopy(s *checkpoint.Store, r *checkpoint.Replica, beforeEnd ...func() error) error {
	err := r.BeginCopy()
	for at, first := (*checkpoint.Range)(nil), true; err == nil && (first || at != nil); first = false {
		var changes checkpoint.Changes
		if changes, at, _, err = s.ReadRange(at, 100); err == nil {
			err = r.Apply([]checkpoint.Changes{changes})
		}
	}
	for _, f := range beforeEnd {
		err = errors.Join(err, f())
	}
	return errors.Join(err, r.EndCopy())
}

// TestCopyOfANewerFormat is refused, as at a rollout of a later version, and the former copy is as it was.
func TestCopyOfANewerFormat(t *testing.T) {
	s, _ := open(t, t.TempDir())
	s.Lead(checkpoint.Stamp{Lineage: "l", Term: 2}, new(tapped).tap)
	if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{entry(t, 1)}}}}); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r, reports := openReplica(t, dir)
	copyAll(t, s, r)
	before := *r.Info().Replica
	newer := s.Info()
	newer.Format++
	if err := s.Commit(&checkpoint.Commit{Info: &newer}); err != nil {
		t.Fatal(err)
	}
	if err := tryCopy(s, r); err == nil || !strings.Contains(err.Error(), "has format 2") {
		t.Errorf("got %v, want an error that names the format", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = openReplica(t, dir)
	if got := r.Info().Replica; got == nil || got.Compare(before) != 0 || len(*reports) > 0 {
		t.Errorf("the former copy is at %+v, want %+v; %v", got, before, *reports)
	}
}

// TestCopyThatIsNotWhole is dropped, and the former one is as it was.
func TestCopyThatIsNotWhole(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, t.TempDir())
	s.Lead(checkpoint.Stamp{Lineage: "l", Term: 2}, new(tapped).tap)
	if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{entry(t, 1)}}}}); err != nil {
		t.Fatal(err)
	}
	r, _ := openReplica(t, dir)
	copyAll(t, s, r)
	before := *r.Info().Replica
	if err := r.BeginCopy(); err != nil {
		t.Fatal(err)
	}
	if err := r.Apply([]checkpoint.Changes{{'x'}}); err == nil {
		t.Error("changes that make no sense are applied")
	}
	if err := r.EndCopy(); err == nil {
		t.Error("half a copy is whole")
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = openReplica(t, dir)
	if got := r.Info().Replica; got == nil || got.Compare(before) != 0 {
		t.Errorf("the former copy is at %+v, want %+v", got, before)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*.copy")); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// A copy that is damaged is set aside, and the replica is an empty one.
func TestDamagedReplica(t *testing.T) {
	files := map[string][]byte{"text": []byte(strings.Repeat("damage", 3000))}
	whole := t.TempDir()
	filled, _ := open(t, whole)
	fill(t, filled)
	if err := filled.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []int{16 + 7, 16 + 11, 16 + 15} {
		content, err := os.ReadFile(filepath.Join(whole, "kubeferry.db"))
		if err != nil {
			t.Fatal(err)
		}
		for page := 2 * os.Getpagesize(); page < len(content); page += os.Getpagesize() {
			content[page+at] ^= 4
		}
		files[fmt.Sprint("byte ", at, " of each page")] = content
	}
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "kubeferry.db"), content, 0o600); err != nil {
				t.Fatal(err)
			}
			s, _ := open(t, t.TempDir())
			s.Lead(checkpoint.Stamp{Lineage: "l", Term: 2}, new(tapped).tap)
			if err := s.Commit(&checkpoint.Commit{}); err != nil {
				t.Fatal(err)
			}
			r, reports := openReplica(t, dir)
			if r.Info().Replica != nil {
				t.Errorf("%+v", r.Info())
			}
			copyAll(t, s, r)
			aside, err := filepath.Glob(filepath.Join(dir, "*.set-aside-*"))
			if err != nil || len(aside) != 1 || len(*reports) != 1 || r.Info().Replica == nil {
				t.Errorf("set aside: %v %v; %v", aside, err, *reports)
			}
		})
	}
}

// TestLeadAlone: a copy from before a run without replicas does not include what that run wrote, and may not replace its file in silence.
func TestLeadAlone(t *testing.T) {
	dir := t.TempDir()
	open := func() *checkpoint.Store {
		store, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	commit := func(store *checkpoint.Store) checkpoint.Stamp {
		if err := checkpoint.NewCommitter(store, slog.New(slog.DiscardHandler)).Begin(); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
		store = open()
		defer store.Close()
		return *store.Info().Replica
	}
	store := open()
	store.Lead(checkpoint.Stamp{Lineage: "l"}.Begin(7), func(*checkpoint.Stamp, []checkpoint.Changes) {})
	shared := commit(store)
	store = open()
	store.LeadAlone(1)
	alone := commit(store)
	if !alone.Includes(shared) || alone.Term <= shared.Term {
		t.Errorf("%+v after %+v", alone, shared)
	}
	if next := shared.Begin(alone.Term + 1); next.Includes(alone) {
		t.Errorf("%+v, from the copy of before, includes %+v", next, alone)
	}
}

// TestReplicaGivesSpaceBack: a standby's file shrinks once nearly all of it is free, however long it stands by, and so does any at a
// start; but a replica that takes over does not wait for that.
func TestReplicaGivesSpaceBack(t *testing.T) {
	leaderDir, standbyDir := t.TempDir(), t.TempDir()
	size := func() int64 {
		info, err := os.Stat(filepath.Join(standbyDir, "kubeferry.db"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	s, _ := open(t, leaderDir)
	sent := &tapped{}
	s.Lead(checkpoint.Stamp{Lineage: "l"}.Begin(7), sent.tap)
	large := func(n int) (put delta.WatchChange, remove delta.WatchChange) {
		put = delta.WatchChange{Watch: "w", Meta: []byte(`{}`)}
		for i := range n {
			k := delta.Known{Namespace: "n", Name: fmt.Sprint(i), Version: delta.NewVersion("u", "1"), Retained: true, Previous: make([]byte, 1<<20)}
			put.Put, remove.Remove = append(put.Put, k), append(remove.Remove, delta.Known{Namespace: "n", Name: k.Name})
		}
		remove.Watch, remove.Meta = put.Watch, put.Meta
		return put, remove
	}
	commit := func(change delta.WatchChange) []checkpoint.Changes {
		t.Helper()
		if err := s.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{change}}); err != nil {
			t.Fatal(err)
		}
		return sent.changes[len(sent.changes)-1]
	}
	commit(delta.WatchChange{Watch: "w", Meta: []byte(`{}`)})
	r, reports := openReplica(t, standbyDir)
	whole, _, _, err := s.ReadRange(nil, 1<<20)
	if err := errors.Join(err, r.BeginCopy(), r.Apply([]checkpoint.Changes{whole}), r.EndCopy()); err != nil {
		t.Fatal(err)
	}
	put, remove := large(20)
	if err := r.Apply(commit(put)); err != nil {
		t.Fatal(err)
	}
	full := size()
	if err := r.Apply(commit(remove)); err != nil {
		t.Fatal(err)
	}
	if full < 20<<20 || size() > 1<<20 {
		t.Errorf("the file of a standby grew to %d, and takes %d", full, size())
	}
	put, remove = large(5) // too little for it to pause
	if err := errors.Join(r.Apply(commit(put)), r.Apply(commit(remove))); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	before := size()
	led, err := r.Lead()
	if err != nil {
		t.Fatal(err)
	}
	if before < 4<<20 || size() != before {
		t.Errorf("the file of a replica that takes over had %d and has %d", before, size())
	}
	if err := led.Close(); err != nil {
		t.Fatal(err)
	}
	r, _ = openReplica(t, standbyDir)
	if size() > 1<<20 {
		t.Errorf("after the start of a replica it takes %d", size())
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if got, want := content(t, filepath.Join(standbyDir, "kubeferry.db")), content(t, filepath.Join(leaderDir, "kubeferry.db")); !slices.Equal(got, want) || len(*reports) > 0 {
		t.Errorf("the copy differs: %v", *reports)
	}
}

// A replica takes over without a file, and behind one that cannot be used.
func TestLeadWithoutACopy(t *testing.T) {
	for name, test := range map[string]struct {
		reports int
		prepare func(t *testing.T, dir string)
	}{
		"no file": {0, func(*testing.T, string) {}},
		"damaged": {1, func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "kubeferry.db"), []byte("damaged"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			test.prepare(t, dir)
			r, reports := openReplica(t, dir)
			s, err := r.Lead()
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if s.Info().Lost != (test.reports > 0) || s.Info().Format != 1 || len(*reports) != test.reports {
				t.Errorf("got %+v, reports %v", s.Info(), *reports)
			}
			if err := s.Commit(&checkpoint.Commit{}); err != nil {
				t.Error(err)
			}
		})
	}
}
