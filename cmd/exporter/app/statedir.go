package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// StateDir is a state directory in use: by the kubeferry that runs on it, or by this process.
type StateDir interface {
	// DeadLetters returns some dead letters from a number on, in order; none at their end.
	DeadLetters(ctx context.Context, from uint64) ([]checkpoint.DeadLetter, error)
	// RemoveDeadLetters returns when the letters are removed from the disk.
	RemoveDeadLetters(ctx context.Context, seqs []uint64) error
	// DropLog deletes the log of a pipeline that does not run, and returns how many changes were in it. The standbys delete it too.
	DropLog(ctx context.Context, pipeline string) (entries uint64, err error)
	// Summary returns what is in it, as of the last commit.
	Summary(ctx context.Context) (StateSummary, error)
}

// StateSummary is what `kubeferry state show` prints of a state directory.
type StateSummary struct {
	ClusterUID string
	// Offset is what is added to resource versions to make sequences.
	Offset uint64
	// Running is set if kubeferry runs on the directory. Else Clean says whether its last run ended with a last commit.
	Running, Clean bool
	DeadLetters    checkpoint.DeadLetterStatus
	// Logs are what waits for each pipeline, by name.
	Logs map[string]delta.LogSize
}

// WithStateDir calls use with the state directory at a path. If no kubeferry runs on it, report gets what is wrong with the file.
func WithStateDir(ctx context.Context, path string, report func(message string, err error), use func(StateDir) error) error {
	client := newSocketClient(path)
	defer client.close()
	if connection, err := client.dial(ctx, "", ""); err == nil {
		_ = connection.Close()
		return use(client)
	}
	if _, err := os.Stat(path); err != nil { // it is not made for nothing
		return err
	}
	store, err := checkpoint.Open(path, report)
	if err != nil {
		return err
	}
	committer := checkpoint.NewCommitter(store, slog.New(slog.DiscardHandler)) // use gets the errors
	own := &ownStateDir{committer: committer, dead: checkpoint.NewDeadLetters(store, committer, math.MaxInt64)}
	return errors.Join(use(own), store.Close())
}

// ownStateDir is the one that this process has open.
type ownStateDir struct {
	committer *checkpoint.Committer
	dead      *checkpoint.DeadLetters
	pipelines []*pipeline.Pipeline // that run
	running   bool                 // this process is the kubeferry that runs on it
}

var _ StateDir = (*ownStateDir)(nil)

// deadLetterChunk is how much is read at once.
const deadLetterChunk = 1 << 20

// DeadLetters implements [StateDir].
func (s *ownStateDir) DeadLetters(ctx context.Context, from uint64) ([]checkpoint.DeadLetter, error) {
	return s.dead.Read(ctx, from, deadLetterChunk)
}

// RemoveDeadLetters implements [StateDir].
func (s *ownStateDir) RemoveDeadLetters(ctx context.Context, seqs []uint64) error {
	return s.dead.Remove(ctx, seqs)
}

// DropLog implements [StateDir].
func (s *ownStateDir) DropLog(_ context.Context, name string) (entries uint64, err error) {
	if slices.ContainsFunc(s.pipelines, func(p *pipeline.Pipeline) bool { return p.Name() == name }) {
		return 0, fmt.Errorf("pipeline %q runs: restart kubeferry without it first", name)
	}
	size, err := s.committer.DropLog(name)
	return size.Entries, err
}

// Summary implements [StateDir].
func (s *ownStateDir) Summary(context.Context) (StateSummary, error) {
	info, logs := s.committer.State()
	return StateSummary{
		ClusterUID: info.ClusterUID, Offset: info.Offset, Running: s.running, Clean: info.Clean, DeadLetters: s.dead.Status(), Logs: logs,
	}, nil
}
