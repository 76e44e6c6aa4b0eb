package app

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

// TestRedactionKey: the key stays the same over restarts, whatever a start that was killed left behind.
func TestRedactionKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "redaction.key")
	for name, content := range map[string]string{path: "", path + ".new": "half a k"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Dir(path)
	key, err := redactionKey(config.Redaction{}, dir)
	if err != nil || len(key) < 26 {
		t.Fatalf("got %q, %v, want a key of 128 bits", key, err)
	}
	if stored, err := os.ReadFile(path); err != nil || !bytes.Equal(stored, key) {
		t.Errorf("stored %q, %v, want %q", stored, err, key)
	}
	if again, err := redactionKey(config.Redaction{}, dir); err != nil || !bytes.Equal(again, key) {
		t.Errorf("the next start got %q, %v, want %q", again, err, key)
	}
	if key, err := redactionKey(config.Redaction{}, filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Errorf("got %q without an error where it cannot be stored", key)
	}
}

// A key that is not on the disk is not used: after a loss of power there would be another one. /dev/null takes every write, and
// cannot be synced.
func TestRedactionKeyIsSynced(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(os.DevNull, filepath.Join(dir, "redaction.key.new")); err != nil {
		t.Fatal(err)
	}
	if key, err := redactionKey(config.Redaction{}, dir); err == nil {
		t.Errorf("got %q without an error where it cannot be synced", key)
	}
}
