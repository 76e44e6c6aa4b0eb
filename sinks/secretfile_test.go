package sinks_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestSecretFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "secret")
	file := sinks.NewSecretFile("tokenFile", path)
	put := func(content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	read := func(want string) {
		t.Helper()
		got, err := file.Read()
		if err != nil || string(got) != want {
			t.Errorf("got %q, error %v; want %q", got, err, want)
		}
	}
	if _, err := file.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the file: got error %v", err)
	}
	put("first\r\n")
	read("first")
	read("first")
	put("the second")
	read("the second")

	put("\n")
	if _, err := file.Read(); err == nil {
		t.Error("an empty file: got no error")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := file.Read(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that vanished: got error %v", err)
	}
	put("third with a blank ")
	read("third with a blank ")

	// The same size at another time.
	put("THIRD with a blank ")
	if err := os.Chtimes(path, time.Now(), time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	read("THIRD with a blank ")
}

// TestSecretFileSameStamp replaces a file by one of the same size and time, in place and by a rename, as two steps of a
// rotation within one tick of the file system's clock do.
func TestSecretFileSameStamp(t *testing.T) {
	for _, age := range []time.Duration{0, time.Hour} {
		path := filepath.Join(t.TempDir(), "secret")
		stamp := time.Now().Add(-age)
		put := func(path, content string) {
			t.Helper()
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path, stamp, stamp); err != nil {
				t.Fatal(err)
			}
		}
		file := sinks.NewSecretFile("tokenFile", path)
		read := func(want string) {
			t.Helper()
			if got, err := file.Read(); err != nil || string(got) != want {
				t.Errorf("age %v: got %q, error %v; want %q", age, got, err, want)
			}
		}
		put(path, "one")
		read("one")
		put(path+".new", "two")
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		read("two")
		if age == 0 { // an old file that is changed in place and stamped back looks the same
			put(path, "six")
			read("six")
		}
	}
}

// TestSecretFileMounted rotates as the kubelet does: by a symbolic link to a new directory.
func TestSecretFileMounted(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "..data")
	for i, content := range []string{"one", "two"} {
		version := filepath.Join(dir, content)
		if err := os.Mkdir(version, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(version, "token"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		at := time.Now().Add(time.Duration(i) * time.Second)
		if err := os.Chtimes(filepath.Join(version, "token"), at, at); err != nil {
			t.Fatal(err)
		}
	}
	file := sinks.NewSecretFile("tokenFile", filepath.Join(link, "token"))
	for _, want := range []string{"one", "two"} {
		next := filepath.Join(dir, "..next")
		if err := os.Symlink(want, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, link); err != nil {
			t.Fatal(err)
		}
		if got, err := file.Read(); err != nil || string(got) != want {
			t.Errorf("got %q, error %v; want %q", got, err, want)
		}
	}
}
