package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// treeFile is a state file with branches, inline buckets, and values of several pages.
func treeFile(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), fileName)
	db, err := openFile(path)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		if err := writeRaw(tx, []byte(`{"format":1,"clusterUID":"c","epoch":1,"clean":true}`), []byte(`{}`), []byte(`{"entries":101,"bytes":9,"next":300}`)); err != nil {
			return err
		}
		log := tx.Bucket(logsBucket).Bucket([]byte("p"))
		for seq := uint64(50); seq < 150; seq++ {
			value, err := encodeEntry(&delta.Entry{Seq: seq, Gap: &delta.Gap{Watch: strings.Repeat("w", int(seq)*int(seq)/5)}})
			if err := errors.Join(err, log.Put(seqKey(seq), value)); err != nil {
				return err
			}
		}
		return nil
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// salvaged returns how many entries can be read of a file.
func salvaged(t *testing.T, content []byte) (entries int, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "aside")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	err = Salvage(path, Salvaged{Entry: func(string, delta.Entry) error { entries++; return nil }})
	return entries, err
}

// Whatever bit is flipped in what bbolt trusts of a page, the file counts as damaged, or bbolt finds nothing wrong with it. What
// is in other pages can be read.
func TestFlippedBits(t *testing.T) {
	whole, page := treeFile(t), os.Getpagesize()
	if entries, err := salvaged(t, whole); entries != 101 || err != nil {
		t.Fatalf("got %d entries, %v", entries, err)
	}
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	type pageKind struct {
		flags   uint16
		buckets bool
	}
	flips, pages := 0, map[pageKind]int{}
	for id := 2; id < len(whole)/page; id++ {
		at := id * page
		if binary.NativeEndian.Uint64(whole[at:]) != uint64(id) {
			continue // another page goes on in it
		}
		kind := pageKind{binary.NativeEndian.Uint16(whole[at+8:]), binary.NativeEndian.Uint32(whole[at+headerSize:])&isBucket != 0}
		if pages[kind]++; pages[kind] > 2 {
			continue // it is like others
		}
		// Of a branch, or of a page that says where buckets are, all that is below may be lost.
		entriesOnly := kind.flags == isLeaf && !kind.buckets
		for offset := range headerSize + 2*elementSize {
			flips++
			flip := byte(1) << (flips % 8)
			if _, err := file.WriteAt([]byte{whole[at+offset] ^ flip}, int64(at+offset)); err != nil {
				t.Fatal(err)
			}
			name := fmt.Sprintf("byte %d of page %d", offset, id)
			verified := verify(path)
			if verified == nil {
				check(t, path, name)
			} else if !errors.Is(verified, errUnusable) {
				t.Errorf("%s: %v", name, verified)
			}
			read := 0
			err := Salvage(path, Salvaged{Entry: func(string, delta.Entry) error { read++; return nil }})
			if read < 90 && entriesOnly {
				t.Errorf("%s: %d entries can be read: %v", name, read, err)
			}
			if _, err := file.WriteAt(whole[at+offset:][:1], int64(at+offset)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if pages[pageKind{isBranch, false}] == 0 || pages[pageKind{isLeaf, false}] == 0 || pages[pageKind{isLeaf, true}] == 0 {
		t.Errorf("bits of these pages were flipped: %v", pages)
	}
}

// check has bbolt check a file.
func check(t *testing.T, path, name string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("%s: %v", name, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// A page that two others name, or one of those above it, would be read twice, or for ever.
func TestPagesUsedTwice(t *testing.T) {
	whole, page := treeFile(t), os.Getpagesize()
	branches := 0
	for id := 2; id < len(whole)/page; id++ {
		at := id * page
		if binary.NativeEndian.Uint16(whole[at+8:]) != isBranch || binary.NativeEndian.Uint64(whole[at:]) != uint64(id) {
			continue
		}
		branches++
		second := binary.NativeEndian.Uint64(whole[at+headerSize+elementSize+8:])
		for _, other := range []uint64{0, uint64(id), second, 1 << 60} {
			content := bytes.Clone(whole)
			binary.NativeEndian.PutUint64(content[at+headerSize+8:], other)
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, fileName), content, 0o600); err != nil {
				t.Fatal(err)
			}
			reports := 0
			s, err := Open(dir, func(string, error) { reports++ })
			if err != nil || reports != 1 {
				t.Fatalf("page %d instead of the first below %d: %v, %d reports", other, id, err, reports)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			if entries, err := salvaged(t, content); entries < 50 || err == nil {
				t.Errorf("page %d instead of the first below %d: %d entries can be read, %v", other, id, entries, err)
			}
		}
	}
	if branches == 0 {
		t.Error("the file has no branches")
	}
}

// A fault of mapped memory may pass, as an error of the disk does: nothing is set aside.
func TestFaultMayPass(t *testing.T) {
	path := filepath.Join(t.TempDir(), fileName)
	if err := os.WriteFile(path, make([]byte, 2*os.Getpagesize()), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 2*os.Getpagesize(), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Munmap(mapped) }()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	err = guarded(path, func() error { return fmt.Errorf("read %d", mapped[os.Getpagesize()]) })
	if !errors.Is(err, errFault) || errors.Is(err, errUnusable) || !strings.Contains(err.Error(), "left as it is") {
		t.Errorf("got %v", err)
	}
	err = guarded(path, func() error { panic("page 3 has unexpected type") })
	if !errors.Is(err, errUnusable) {
		t.Errorf("got %v", err)
	}
}
