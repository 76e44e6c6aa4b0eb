package app

import (
	"log/slog"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/replication"
)

// TestClaim: a replica that leads claims a commit of its term once that is on disk. One that ends before may be the only one that has the
// state, and the Lease names none that nobody has.
func TestClaim(t *testing.T) {
	dir, logger := t.TempDir(), slog.New(slog.DiscardHandler)
	report := func(message string, err error) { t.Error(message, err) }
	open := func() *checkpoint.Store {
		store, err := checkpoint.Open(dir, report)
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	write := func(stamp checkpoint.Stamp) {
		store := open()
		store.Lead(stamp, func(*checkpoint.Stamp, []checkpoint.Changes, error) {})
		if err := checkpoint.NewCommitter(store, logger).Begin(); err != nil {
			t.Fatal(err)
		}
		if err := store.Close(); err != nil {
			t.Fatal(err)
		}
	}
	take := func() *replica {
		copied, err := checkpoint.OpenReplica(dir, report)
		if err != nil {
			t.Fatal(err)
		}
		if err := copied.Close(); err != nil {
			t.Fatal(err)
		}
		return &replica{
			config: &config.Config{StateDir: dir}, copied: copied, logger: logger, lease: replication.NewLease(replication.LeaseOptions{}),
		}
	}

	write(checkpoint.Stamp{Lineage: "l", Commit: 41}.Begin(7))
	r := take()
	want := replication.Claim{Lineage: "l", Term: 7, Commit: 42}
	store := open()
	if _, err := r.begin(store); err != nil {
		t.Fatal(err)
	}
	if got := r.claim(); got != want {
		t.Errorf("before its first commit it claims %+v, want %+v", got, want)
	}
	if err := checkpoint.NewCommitter(store, logger).Begin(); err != nil {
		t.Fatal(err)
	}
	if got := r.claim(); got.Commit != want.Commit+1 {
		t.Errorf("after its first commit it claims %+v", got)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}

	r = take()
	write(checkpoint.Stamp{Lineage: "other", Commit: 42}.Begin(7)) // as far as the former
	if _, err := r.begin(open()); err == nil {
		t.Error("it leads with another state than it has claimed")
	}
}
