package checkpoint_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

func open(t testing.TB, dir string) (*checkpoint.Store, []string) {
	t.Helper()
	var reports []string
	s, err := checkpoint.Open(dir, func(message string, err error) { reports = append(reports, fmt.Sprint(message, err)) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s, reports
}

func entry(t testing.TB, seq uint64) delta.Entry {
	t.Helper()
	object, err := delta.NewObject(fmt.Appendf(nil, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p%d","uid":"u","resourceVersion":"%d"},"data":"%s"}`,
		seq, seq, bytes.Repeat([]byte("x"), 500)))
	if err != nil {
		t.Fatal(err)
	}
	return delta.Entry{LogKey: delta.LogKey{Seq: seq}, Attempts: 2, Unsendable: "why", Failed: time.Unix(5, 6), Delta: &delta.Delta{
		Type: delta.Deleted, Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Watch: "w", Object: object,
		Observed: time.Unix(7, 8), Snapshot: true, Inferred: true, FinalStateUnknown: true,
	}}
}

func gap(seq uint64) delta.Entry {
	return delta.Entry{LogKey: delta.LogKey{Seq: seq}, Gap: &delta.Gap{
		Watch: "w", Resource: schema.GroupVersionResource{Group: "g", Version: "v1", Resource: "r"}, Namespace: "n", From: "1", To: "2",
		Reason: "r", Observed: time.Unix(9, 0).UTC(),
	}}
}

func TestCommitSurvives(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	known := []delta.Known{
		{Namespace: "a", Name: "x", Version: delta.NewVersion("4f0c1e10-1267-466d-aa8d-59513e0e4c45", "235")},
		{Name: "cluster-scoped:name", Version: delta.NewVersion("4F0C1E10-1267-466d-aa8d-59513e0e4c45", "007")},
		{Namespace: "b", Name: "y", Version: delta.NewVersion("odd", "18446744073709551616")},
		{Namespace: "b", Name: "z", Version: delta.NewVersion("odd", "1"), Filtered: 7, Had: 3, Due: 300, Era: 5},
	}
	info := s.Info()
	info.ClusterUID, info.Clean = "c", false
	commits := []*checkpoint.Commit{
		{
			Info:    &info,
			Watches: []delta.WatchChange{{Watch: "w", Meta: []byte(`{"position":"9"}`), Put: append([]delta.Known{{Namespace: "a", Name: "gone", Version: delta.NewVersion("u", "1")}}, known...)}},
			Logs:    []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{entry(t, 1), gap(2), entry(t, 3)}}},
		},
		{
			Watches: []delta.WatchChange{{Watch: "w", Meta: []byte(`{"position":"10"}`), Remove: []delta.Known{{Namespace: "a", Name: "gone"}}}},
			Logs:    []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{entry(t, 4)}, Remove: []delta.LogKey{{Seq: 1}, {Seq: 77}}}},
		},
	}
	for _, c := range commits {
		if err := s.Commit(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	s, reports := open(t, dir)
	if len(reports) > 0 {
		t.Errorf("reported %v", reports)
	}
	if got := s.Info(); got != info {
		t.Errorf("got %+v, want %+v", got, info)
	}
	got := map[string]delta.Known{}
	var meta []byte
	err := s.Watches(func(_ string, text []byte) error {
		meta = bytes.Clone(text)
		return s.Known("w", func(k delta.Known) { got[k.Namespace+"/"+k.Name] = k })
	})
	if err != nil || string(meta) != `{"position":"10"}` || len(got) != len(known) {
		t.Errorf("got %s, %v, %v", meta, got, err)
	}
	for _, k := range known {
		if !reflect.DeepEqual(got[k.Namespace+"/"+k.Name], k) {
			t.Errorf("got %+v, want %+v", got[k.Namespace+"/"+k.Name], k)
		}
	}
	entries, err := s.ReadLog("p")
	if err != nil || len(entries) != 3 {
		t.Fatalf("got %d entries, %v", len(entries), err)
	}
	if !reflect.DeepEqual(entries[0].Gap, gap(2).Gap) {
		t.Errorf("got %+v, want %+v", entries[0].Gap, gap(2).Gap)
	}
	if want := entry(t, 3); !sameEntry(entries[1], want) {
		t.Errorf("got %+v, want %+v", entries[1], want)
	}
	if size := s.Logs()["p"]; size.Entries != 3 || size.Next != 5 || size.Bytes <= 0 {
		t.Errorf("got %+v", size)
	}
	if entries, more, err := s.ReadFlow("p", "", 3, 1); err != nil || !more || len(entries) != 1 || entries[0].Seq != 3 {
		t.Errorf("from 3, one byte: got %v, %v", entries, err)
	}
}

// Megabytes of the same letter take hundreds of bytes on disk: what is read at once is bounded by what it takes in memory.
func TestReadLogBoundsMemory(t *testing.T) {
	s, _ := open(t, t.TempDir())
	object, err := delta.NewObject(fmt.Appendf(nil, `{"metadata":{"name":"large"},"data":{"a":%q}}`, strings.Repeat("<", 2<<20)))
	if err != nil {
		t.Fatal(err)
	}
	change := delta.LogChange{Pipeline: "p"}
	for seq := range uint64(20) {
		large := entry(t, seq)
		large.Delta.Object = object
		change.Append = append(change.Append, large)
	}
	if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
		t.Fatal(err)
	}
	if size := s.Logs()["p"].Bytes; size > 1<<20 {
		t.Fatalf("they take %d bytes on disk", size)
	}
	if entries, _, err := s.ReadFlow("p", "", 0, 1<<20); err != nil || len(entries) != 1 {
		t.Errorf("got %d entries, %v, want one", len(entries), err)
	}
}

func sameEntry(a, b delta.Entry) bool {
	da, db := *a.Delta, *b.Delta
	sameObject := bytes.Equal(da.Object.JSON(), db.Object.JSON())
	sameTime := da.Observed.Equal(db.Observed) && a.Failed.Equal(b.Failed)
	da.Object, db.Object, da.Observed, db.Observed = nil, nil, time.Time{}, time.Time{}
	return sameObject && sameTime && da == db && a.Seq == b.Seq && a.Attempts == b.Attempts && a.Unsendable == b.Unsendable
}

func TestLocked(t *testing.T) {
	t.Parallel() // it waits for a lock
	dir := t.TempDir()
	open(t, dir)
	_, err := checkpoint.Open(dir, func(string, error) {})
	if !errors.Is(err, checkpoint.ErrLocked) {
		t.Errorf("got %v, want ErrLocked", err)
	}
}

// A file that was cut short at any place, or holds something else, is set aside, reported, and never deleted.
func TestDamagedFilesAreSetAside(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	fill(t, s)
	want := contents(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(filepath.Join(dir, "kubeferry.db"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{
		"text":        []byte("not a database, but longer than nothing"),
		"zeros":       make([]byte, 64<<10),
		"other magic": append([]byte("xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"), make([]byte, 32<<10)...),
	}
	for cut := 0; cut < len(whole); cut += 1 + len(whole)/29 {
		files[fmt.Sprintf("cut at %d of %d", cut, len(whole))] = whole[:cut]
	}
	for border := 0; border <= len(whole); border += 5 * os.Getpagesize() {
		for cut := max(border-1, 0); cut <= min(border+1, len(whole)); cut++ {
			files[fmt.Sprintf("cut at %d of %d", cut, len(whole))] = whole[:cut]
		}
	}
	files["a known object that makes no sense"] = withKnown(t, []byte{9, 9})
	noLog := changed(t, func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("log/p")) }) // as under a name with a wrong letter
	if files["a size without its log"], err = os.ReadFile(filepath.Join(noLog, "kubeferry.db")); err != nil {
		t.Fatal(err)
	}
	for page := 2; page < len(whole)/os.Getpagesize(); page += 11 {
		if whole[page*os.Getpagesize()+8] == 1 {
			continue // of a branch: bbolt reads its keys on a goroutine of its own
		}
		// The length of its first key, and that of the value. Not the place of the key: bbolt does not compare it with the size of the file, and
		// reads what happens to be there in memory.
		for _, at := range []int{16 + 11, 16 + 15} {
			content := bytes.Clone(whole)
			content[page*os.Getpagesize()+at] ^= 4
			files[fmt.Sprintf("byte %d of page %d", at, page)] = content
		}
	}
	restored := 0
	for name, content := range files {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "kubeferry.db")
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
			s, reports := open(t, dir)
			got := contents(t, s)
			aside, _ := filepath.Glob(path + ".set-aside-*")
			if slices.Equal(got, want) && len(reports) == 0 && len(aside) == 0 {
				restored++ // what was cut off was free
				return
			}
			if len(got) != 0 || len(reports) != 1 || !s.Info().Lost {
				t.Errorf("got %d of %d things, reports %v", len(got), len(want), reports)
			}
			if len(aside) != 1 {
				t.Fatalf("set aside: %v", aside)
			}
			if kept, _ := os.ReadFile(aside[0]); !bytes.Equal(kept, content) {
				t.Error("the file that was set aside is not what it was")
			}
		})
	}
	if restored == 0 || restored > len(files)/2 {
		t.Errorf("%d of %d files were restored", restored, len(files))
	}
}

// What waits in a file that is set aside is counted for the operator: of one that is damaged, what can be read of it.
func TestWhatIsSetAsideIsCounted(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string){
		"damaged": func(t *testing.T, path string) { writeKnown(t, path, []byte{9, 9}) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d, _, stop := deadLetters(t, dir, 1000)
			for _, letter := range []string{`"a"`, `"b"`} {
				if _, err := d.Write(t.Context(), []byte(letter)); err != nil {
					t.Fatal(err)
				}
			}
			stop()
			s, _ := open(t, dir)
			known := []delta.Known{{Name: "a", Version: delta.NewVersion("u", "1")}}
			for _, c := range []*checkpoint.Commit{
				{
					Watches: []delta.WatchChange{{Watch: "w", Meta: []byte("{}"), Put: known}},
					Logs: []delta.LogChange{
						{Pipeline: "p", Append: []delta.Entry{entry(t, 1), gap(2), entry(t, 3)}},
						{Pipeline: "q", Append: []delta.Entry{entry(t, 1)}},
					},
				},
				{Logs: []delta.LogChange{{Pipeline: "p", Append: []delta.Entry{entry(t, 4), entry(t, 5)}, Remove: []delta.LogKey{{Seq: 1}}}}},
			} {
				if err := s.Commit(c); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			spoil(t, filepath.Join(dir, "kubeferry.db"))
			_, reports := open(t, dir)
			if len(reports) != 1 || !strings.Contains(reports[0], " 5 undelivered entries and 2 dead letters ") {
				t.Errorf("reported %q", reports)
			}
		})
	}
}

// A file that may be whole is not touched: a start that cannot read it fails, and says what to do.
func TestWhatMayPassIsNotSetAside(t *testing.T) {
	setInfo := func(info string) func(*bolt.Tx) error {
		return func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("meta"), []byte(info)) }
	}
	newer := setInfo(`{"format":99}`)
	known := func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("known/w1")).Put([]byte("/a"), []byte{9, 9})
	}
	logs := func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("logs")) }
	grow := func(tx *bolt.Tx) error {
		b, err := tx.CreateBucket([]byte("large"))
		return errors.Join(err, b.Put([]byte("large"), make([]byte, 8<<20)))
	}
	shrink := func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("large")) }
	notAFile := t.TempDir()
	if err := os.Mkdir(filepath.Join(notAFile, "kubeferry.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	loop := t.TempDir() // stands for all that the system refuses
	if err := os.Symlink("kubeferry.db", filepath.Join(loop, "kubeferry.db")); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct{ dir, want string }{
		"another format":             {changed(t, newer), "has format 99"},
		"one with other objects":     {changed(t, newer, known), "has format 99"},
		"one with other buckets":     {changed(t, newer, logs), "has format 99"},
		"one that is mostly free":    {changed(t, newer, grow, shrink), "has format 99"},
		"an unknown format":          {changed(t, setInfo(`{}`), known), "has format 0"},
		"a directory":                {notAFile, "is a directory"},
		"an error of the filesystem": {loop, "too many levels of symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			before, _ := os.ReadFile(filepath.Join(tt.dir, "kubeferry.db"))
			_, err := checkpoint.Open(tt.dir, func(message string, err error) { t.Error(message, err) })
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "left as it is") {
				t.Errorf("got %v", err)
			}
			after, _ := os.ReadFile(filepath.Join(tt.dir, "kubeferry.db"))
			if files := stateFiles(t, tt.dir); len(files) != 1 || !bytes.Equal(before, after) {
				t.Errorf("the directory holds %v, and the file is the same: %v", files, bytes.Equal(before, after))
			}
		})
	}
}

// changed returns the directory of a file that was changed in transactions.
func changed(t *testing.T, changes ...func(*bolt.Tx) error) string {
	t.Helper()
	dir := t.TempDir()
	s, _ := open(t, dir)
	fill(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	db, err := bolt.Open(filepath.Join(dir, "kubeferry.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		err = errors.Join(err, db.Update(change))
	}
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return dir
}

// fill commits watches with known sets and logs, in several commits, so that pages are used again.
func fill(t *testing.T, s *checkpoint.Store) {
	t.Helper()
	for round := range uint64(3) {
		var commit checkpoint.Commit
		for _, id := range []string{"w1", "w2", "w3"} {
			change := delta.WatchChange{Watch: id, Meta: fmt.Appendf(nil, `{"position":"%d"}`, round)}
			for n := range uint64(100) {
				change.Put = append(change.Put, delta.Known{
					Namespace: "ns", Name: fmt.Sprint("object-", round, "-", n), Version: delta.NewVersion("4f0c1e10-1267-466d-aa8d-59513e0e4c45", fmt.Sprint(n)),
					Filtered: n % 3, Had: n % 4, Due: n % 5, Era: uint32(n % 3), Retained: n > 0, Previous: bytes.Repeat([]byte("y"), int(n)),
				})
			}
			commit.Watches = append(commit.Watches, change)
		}
		for _, name := range []string{"p", "q"} {
			change := delta.LogChange{Pipeline: name}
			for n := range uint64(40) {
				change.Append = append(change.Append, entry(t, round*40+n))
				if round > 0 && n%4 > 0 {
					change.Remove = append(change.Remove, delta.LogKey{Seq: (round-1)*40 + n})
				}
			}
			commit.Logs = append(commit.Logs, change)
		}
		if err := s.Commit(&commit); err != nil {
			t.Fatal(err)
		}
	}
}

// contents lists all that a store holds.
func contents(t *testing.T, s *checkpoint.Store) (all []string) {
	t.Helper()
	err := s.Watches(func(id string, meta []byte) error {
		all = append(all, id+" "+string(meta))
		return s.Known(id, func(k delta.Known) {
			previous, err := s.Previous(id, k.Namespace, k.Name)
			if err != nil || k.Retained != (previous != nil) {
				t.Fatalf("%s: retained %v, got %q, %v", k.Name, k.Retained, previous, err)
			}
			all = append(all, fmt.Sprint(id, k.Namespace, k.Name, k.Version.UID(), k.Version.ResourceVersion(), k.Filtered, k.Had, k.Due, string(previous)))
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(s.Logs())) {
		entries, err := s.ReadLog(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprint(name, s.Logs()[name]))
		for _, e := range entries {
			all = append(all, fmt.Sprint(name, e.Seq, e.Delta.Type, string(e.Delta.Object.JSON())))
		}
	}
	return all
}

func stateFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "kubeferry.db*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// Of several processes that begin with a directory at once, one has it: whatever it does with the file that it finds, the others do
// not come upon the old one, nor set the new one aside.
func TestDirectoryHasOneOwner(t *testing.T) {
	put := func(name string, size int) func(tx *bolt.Tx) error {
		return func(tx *bolt.Tx) error {
			b, err := tx.CreateBucket([]byte(name))
			return errors.Join(err, b.Put([]byte("large"), make([]byte, size)))
		}
	}
	mostlyFree := func(t *testing.T) string {
		t.Helper()
		return changed(t, put("kept", 8<<20), put("large", 32<<20), func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("large")) })
	}
	cutShort := func(t *testing.T) string {
		t.Helper()
		dir := mostlyFree(t)
		if err := os.Truncate(filepath.Join(dir, "kubeferry.db"), 16<<20); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	for name, tt := range map[string]struct {
		begin func(t *testing.T) (dir string)
		files int
	}{
		"a new file":               {func(t *testing.T) string { t.Helper(); return t.TempDir() }, 1},
		"a file that is compacted": {mostlyFree, 1},
		"a file that is set aside": {cutShort, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for locks
			dir := tt.begin(t)
			var starting sync.WaitGroup
			var opened, locked, reports atomic.Int32
			for range 6 {
				starting.Go(func() {
					s, err := checkpoint.Open(dir, func(string, error) { reports.Add(1) })
					switch {
					case err == nil: // and stays open
						t.Cleanup(func() { _ = s.Close() })
						opened.Add(1)
					case errors.Is(err, checkpoint.ErrLocked):
						locked.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			starting.Wait()
			if opened.Load() != 1 || locked.Load() != 5 || int(reports.Load()) != tt.files-1 {
				t.Errorf("%d opened it, %d found it locked, %d reports", opened.Load(), locked.Load(), reports.Load())
			}
			if files := stateFiles(t, dir); len(files) != tt.files {
				t.Errorf("got %v", files)
			}
		})
	}
}

// A file that was cut short to nothing does not pass for a first start.
func TestEmptyFileIsReported(t *testing.T) {
	dir := t.TempDir()
	if _, reports := open(t, dir); len(reports) != 0 {
		t.Errorf("a first start: got %v", reports)
	}
	dir = t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "kubeferry.db"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, reports := open(t, dir); len(reports) != 1 {
		t.Errorf("got %v", reports)
	}
}

// withKnown is a state file with a known object that is written as given.
func withKnown(t *testing.T, value []byte) []byte {
	t.Helper()
	dir := t.TempDir()
	s, _ := open(t, dir)
	known := delta.Known{Name: "a", Version: delta.NewVersion("u", "1")}
	if err := s.Commit(&checkpoint.Commit{Watches: []delta.WatchChange{{Watch: "w", Meta: []byte("{}"), Put: []delta.Known{known}}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeferry.db")
	writeKnown(t, path, value)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// writeKnown writes the known object a of the watch w as given.
func writeKnown(t *testing.T, path string, value []byte) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("known/w")).Put([]byte("/a"), value)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// damageInfo makes the page with the info unreadable; its text is there.
func damageInfo(content []byte) {
	page := os.Getpagesize()
	for at := 2 * page; at < len(content); at += page {
		if bytes.Contains(content[at:at+page], []byte(`meta{"format":`)) {
			content[at] ^= 1
		}
	}
}

// rewrite changes the state file in dir.
func rewrite(t *testing.T, dir string, change func(content []byte)) {
	t.Helper()
	path := filepath.Join(dir, "kubeferry.db")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	change(content)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A start that ends once it has set the file aside, before the new one holds anything, leaves the rest to the next one.
func TestKilledWhileSetAside(t *testing.T) {
	for name, tt := range map[string]struct {
		info   checkpoint.Info
		damage func(content []byte)
	}{
		"damaged": {checkpoint.Info{Format: 1, ClusterUID: "c", Offset: 3}, damageInfo},
	} {
		for _, begun := range []bool{false, true} { // whether there is a new file, which is empty
			t.Run(fmt.Sprint(name, " begun=", begun), func(t *testing.T) {
				dir := t.TempDir()
				s, _ := open(t, dir)
				if err := errors.Join(s.Commit(&checkpoint.Commit{Info: &tt.info}), s.Close()); err != nil {
					t.Fatal(err)
				}
				rewrite(t, dir, tt.damage)
				func() {
					defer func() {
						_ = recover()
						_ = os.Remove(filepath.Join(dir, "kubeferry.lock")) // a process that is killed holds no lock
					}()
					_, err := checkpoint.Open(dir, func(string, error) { panic("killed") })
					t.Errorf("it was not set aside: %v", err)
				}()
				if begun {
					db, err := bolt.Open(filepath.Join(dir, "kubeferry.db"), 0o600, nil)
					if err != nil {
						t.Fatal(err)
					}
					if err := db.Close(); err != nil {
						t.Fatal(err)
					}
				}
				for life, lost := range []bool{true, true, false} {
					s, _ := open(t, dir)
					if got := s.Info(); got.Lost != lost {
						t.Errorf("got %+v, want lost %v", got, lost)
					}
					if life == 1 { // the first one ends before its first commit
						if err := checkpoint.NewCommitter(s, slog.New(slog.DiscardHandler)).Begin(); err != nil {
							t.Fatal(err)
						}
					}
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
				}
			})
		}
	}
}

// Space that deliveries free is used again, and given back at start.
func TestSpaceComesBack(t *testing.T) {
	dir := t.TempDir()
	s, _ := open(t, dir)
	size := func() int64 {
		info, err := os.Stat(filepath.Join(dir, "kubeferry.db"))
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	const entries = 8000
	var full int64
	for round := range uint64(5) {
		change := delta.LogChange{Pipeline: "p"}
		var remove []delta.LogKey
		for n := range uint64(entries) {
			e := entry(t, round*entries+n)
			change.Append = append(change.Append, e)
			remove = append(remove, e.LogKey)
		}
		if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			full = size()
		}
		if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{{Pipeline: "p", Remove: remove}}}); err != nil {
			t.Fatal(err)
		}
	}
	if full < 4<<20 || size() > full+full/2 {
		t.Errorf("the file grew from %d to %d", full, size())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, _ = open(t, dir)
	if size() > 1<<20 {
		t.Errorf("after the start the file takes %d", size())
	}
	if got := s.Logs()["p"]; got.Entries != 0 || got.Bytes != 0 || got.Next != 5*entries {
		t.Errorf("got %+v", got)
	}
}

func BenchmarkCommit(b *testing.B) {
	s, _ := open(b, b.TempDir())
	e := entry(b, 0)
	for seq := uint64(0); b.Loop(); seq++ {
		change := delta.LogChange{Pipeline: "p"}
		for n := range uint64(1000) {
			e.Seq = seq*1000 + n
			change.Append = append(change.Append, e)
		}
		if err := s.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*1000/b.Elapsed().Seconds(), "entries/s")
}

// A file that its last owner writes to while the next one waits for it is whole.
func TestFileThatGrowsWhileItIsWaitedFor(t *testing.T) {
	dir := t.TempDir()
	first, _ := open(t, dir)
	change := delta.LogChange{Pipeline: "p"}
	for seq := range uint64(500) {
		change.Append = append(change.Append, entry(t, seq))
	}
	type opened struct {
		store   *checkpoint.Store
		reports []string
		err     error
	}
	second := make(chan opened, 1)
	go func() {
		var o opened
		o.store, o.err = checkpoint.Open(dir, func(message string, err error) { o.reports = append(o.reports, fmt.Sprint(message, err)) })
		second <- o
	}()
	time.Sleep(500 * time.Millisecond) // it waits for the lock
	if err := first.Commit(&checkpoint.Commit{Logs: []delta.LogChange{change}}); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	o := <-second
	if o.err != nil {
		t.Fatal(o.err)
	}
	defer o.store.Close()
	if entries, err := o.store.ReadLog("p"); len(entries) != 500 || err != nil || len(o.reports) != 0 {
		t.Errorf("got %d entries, %v, reports %v", len(entries), err, o.reports)
	}
}
