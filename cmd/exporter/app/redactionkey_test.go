package app

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
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
	key, err := redactionKey(config.Redaction{}, dir, nil)
	if err != nil || len(key) < 26 {
		t.Fatalf("got %q, %v, want a key of 128 bits", key, err)
	}
	if stored, err := os.ReadFile(path); err != nil || !bytes.Equal(stored, key) {
		t.Errorf("stored %q, %v, want %q", stored, err, key)
	}
	if again, err := redactionKey(config.Redaction{}, dir, nil); err != nil || !bytes.Equal(again, key) {
		t.Errorf("the next start got %q, %v, want %q", again, err, key)
	}
	if key, err := redactionKey(config.Redaction{}, filepath.Join(t.TempDir(), "missing"), nil); err == nil {
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
	if key, err := redactionKey(config.Redaction{}, dir, nil); err == nil {
		t.Errorf("got %q without an error where it cannot be synced", key)
	}
}

// A replica that never led has the key of the others in its copy, and not in a file. Alone it goes on with that.
func TestRedactionKeyOfAReplicaThatIsLeft(t *testing.T) {
	dir, shared := t.TempDir(), []byte("the key that replicas share")
	store, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	store.Lead(checkpoint.Stamp{Lineage: "l", RedactionKey: shared}, func(*checkpoint.Stamp, []checkpoint.Changes) {})
	info := store.Info()
	if err := errors.Join(store.Commit(&checkpoint.Commit{Info: &info}), store.Close()); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if store, err = checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) }); err != nil {
			t.Fatal(err)
		}
		if key, err := redactionKey(config.Redaction{}, dir, store.Info().Replica); err != nil || !bytes.Equal(key, shared) {
			t.Errorf("got %q, %v", key, err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // another leader made it
		if key, err := redactionKey(config.Redaction{}, dir, &checkpoint.Stamp{RedactionKey: []byte("another")}); err != nil || string(key) != "another" {
			t.Errorf("got %q, %v", key, err)
		}
	}
	if key, err := redactionKey(config.Redaction{Key: "configured"}, dir, &checkpoint.Stamp{RedactionKey: shared}); err != nil || string(key) != "configured" {
		t.Errorf("got %q, %v", key, err)
	}
}
