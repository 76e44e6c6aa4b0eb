package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// state joins the checkpoint to sources and pipelines. Without a state directory its store is nil, and its committer writes
// nothing.
type state struct {
	store     *checkpoint.Store
	committer *checkpoint.Committer
	dead      *checkpoint.DeadLetters // nil without a store
	logger    *slog.Logger

	// permit lets deliveries begin; nil without replicas.
	permit pipeline.Permit
	// secure waits until a standby has the last commit, and the Lease names the offset, or for a while; nil without replicas.
	secure func(context.Context)
	// historyLost is set if it is not known what was sent beyond what the state has.
	historyLost bool
	key         []byte // of redaction
	// offset makes sequences; without a state directory it is 0.
	offset *source.Offset

	stop func() // the commits, and waits for the one under way
}

// openState opens the state directory, if there is one, and makes sure that it is of this cluster: it waits for the
// API server, since the logs of another cluster must not go out under this one's name.
func openState(ctx context.Context, loaded *config.Config, client *source.Client, replica *replica, logger *slog.Logger) (*state, error) {
	s := &state{committer: checkpoint.NewCommitter(nil, logger), logger: logger, offset: source.NoOffset(), stop: func() {}}
	if loaded.StateDir == "" {
		var err error
		s.key, err = redactionKey(loaded.Redaction, "", nil)
		return s, err
	}
	report := reportTo(logger)
	offset := func(last uint64) *source.Offset { return source.NewOffset(last, client.Now) }
	var store *checkpoint.Store
	var err error
	if replica != nil {
		store, err = replica.copied.Lead()
	} else {
		store, err = checkpoint.Open(loaded.StateDir, report)
	}
	if err != nil {
		return nil, &FailureError{err}
	}
	var uid string
	if replica != nil {
		uid = replica.uid // a leader that waited for another answer would deliver nothing while it renews the Lease
	} else if uid, err = identify(ctx, client, logger); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if known := store.Info().ClusterUID; known != "" && uid != "" && known != uid {
		// Under the same name the resource versions begin again, and so may sequences; also once it comes back from there.
		store, err = store.Renew("it is another cluster's", checkpoint.Info{Offset: store.Info().Offset}, report)
		if err != nil {
			return nil, &FailureError{err}
		}
	}
	if uid != "" {
		store.Bind(uid)
	}
	if s.key, err = redactionKey(loaded.Redaction, loaded.StateDir, store.Info().Replica); err != nil {
		return nil, errors.Join(err, store.Close())
	}
	if replica != nil {
		if store, err = replica.begin(store, s.key, offset); err != nil {
			return nil, err
		}
		s.permit, s.secure, s.historyLost, s.offset = replica.permit, replica.secure, replica.historyLost, replica.offset
	} else {
		s.offset = offset(store.Info().Offset)
		store.LeadAlone(uint64(time.Now().UnixMicro())) //nolint:gosec // a time
	}
	s.historyLost = s.historyLost || store.Info().Lost
	s.store = store
	s.committer = checkpoint.NewCommitter(store, logger)
	if replica != nil {
		replica.committer.Store(s.committer)
	}
	s.dead = checkpoint.NewDeadLetters(store, s.committer, int64(loaded.DeadLetters.MaxBytes))
	for name, log := range store.Logs() {
		if log.Entries > 0 && !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Name == name }) {
			logger.Warn("the state directory holds the log of a pipeline that is not configured any more; it is kept until `kubeferry state drop` deletes it",
				"pipeline", name, "entries", log.Entries, "bytes", log.Bytes)
		}
	}
	return s, nil
}

// reportTo returns a function that logs what package checkpoint reports.
func reportTo(logger *slog.Logger) func(message string, err error) {
	return func(message string, err error) {
		if err != nil {
			logger.Error(message, "err", err)
		} else {
			logger.Error(message)
		}
	}
}

// identify reads the cluster's identity, and waits until the API server answers. Without the right to it, it is empty.
func identify(ctx context.Context, client *source.Client, logger *slog.Logger) (uid string, err error) {
	err = untilAnswered(ctx, logger, func() error {
		uid, err = client.ClusterUID(ctx)
		if apierrors.IsForbidden(err) {
			logger.Warn("cannot tell whether the state directory is of this cluster", "err", err,
				"rule", `ClusterRole: {apiGroups: [""], resources: [namespaces], resourceNames: [kube-system], verbs: [get]}`)
			return nil
		}
		return err
	})
	return uid, err
}

// setLog sets the options of a pipeline's log.
func (s *state) setLog(options *pipeline.Options, backlog config.Backlog) (err error) {
	if s.store == nil {
		return nil
	}
	options.Permit = s.permit
	options.Log = pipelineLog{s, options.Name}
	options.Logged = s.store.Logs()[options.Name]
	options.Spill = backlog.Overflow == config.OverflowSpill
	options.MaxDiskBytes = int64(backlog.MaxDiskBytes)
	options.Flows, err = s.store.Flows(options.Name)
	return err
}

// pipelineLog is one pipeline's part of the store.
type pipelineLog struct {
	state *state
	name  string
}

func (l pipelineLog) ReadFlow(flow string, from uint64, maxBytes int) ([]delta.Entry, bool, error) {
	return l.state.store.ReadFlow(l.name, flow, from, maxBytes)
}

func (l pipelineLog) Commit() { l.state.committer.RequestCommit() }

// restore makes the sources begin where the last run ended.
func (s *state) restore(sources []*source.Source) error {
	if s.store == nil {
		return nil
	}
	ended, err := source.Restore(s.store, sources...)
	for id, watch := range ended {
		objects := 0
		err = errors.Join(err, s.store.Known(id, func(delta.Known) { objects++ }))
		s.logger.Warn("a watch is not configured any more: what was known of its objects is forgotten, and no deletion will be sent",
			"source", watch.Source, "resource", watch.Resource, "namespace", watch.Namespace, "objects", objects)
	}
	return err
}

// begin writes the first commit and begins to write the others.
func (s *state) begin(sources []*source.Source, pipelines []*pipeline.Pipeline) error {
	if s.store == nil {
		return nil
	}
	var watches []string
	for _, p := range pipelines { // before the sources, which capture whether a record died that is not in the log any more
		s.committer.Register(pipelineState{p})
	}
	s.committer.Register(offsetState{s.offset})
	for _, from := range sources {
		watches = append(watches, from.WatchIDs()...)
		s.committer.Register(sourceState{from})
	}
	if err := s.committer.Begin(); err != nil {
		return err
	}
	if err := s.forgetOthers(watches); err != nil { // that they have ended is written
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.committer.Run(ctx) })
	s.stop = func() {
		cancel()
		running.Wait()
	}
	return nil
}

// forgetOthers drops the watches that the configuration does not have any more.
func (s *state) forgetOthers(watches []string) error {
	var others []string
	err := s.store.Watches(func(id string, _ []byte) error {
		if !slices.Contains(watches, id) {
			others = append(others, id)
		}
		return nil
	})
	if err != nil || len(others) == 0 {
		return err
	}
	return s.store.Commit(&checkpoint.Commit{DropWatches: others})
}

// sourceState and pipelineState make sources and pipelines participants of the commit.
type sourceState struct{ *source.Source }

func (s sourceState) Capture(c *checkpoint.Commit) {
	c.Watches = append(c.Watches, s.Source.Capture()...)
	c.DropWatches = append(c.DropWatches, s.Source.CaptureEnded()...)
}

func (s sourceState) Committed(map[string]delta.LogSize) { s.Source.Committed() }

// offsetState makes the offset a participant of the commit.
type offsetState struct{ *source.Offset }

func (s offsetState) Capture(c *checkpoint.Commit) { c.Offset = s.Offset.Capture() }

func (s offsetState) Committed(map[string]delta.LogSize) { s.Offset.Committed() }

func (offsetState) Failed() {}

type pipelineState struct{ *pipeline.Pipeline }

func (p pipelineState) Capture(c *checkpoint.Commit) {
	if change := p.Pipeline.Capture(); !change.Empty() {
		c.Logs = append(c.Logs, change)
	}
}

func (p pipelineState) Committed(logs map[string]delta.LogSize) {
	p.Pipeline.Committed(logs[p.Name()].Bytes)
}

// err returns why the state cannot be written, if so.
func (s *state) err() error {
	if err := s.committer.Err(); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return nil
}

// finish writes the last commit. Sources and pipelines must have stopped.
func (s *state) finish() error {
	s.stop()
	return s.committer.Finish()
}

// close closes the state directory.
func (s *state) close() {
	if s.store == nil {
		return
	}
	s.stop()
	if err := s.store.Close(); err != nil {
		s.logger.Warn("close the state directory", "err", err)
	}
}

// registerState registers the metrics of a state directory.
func registerState(registry prometheus.Registerer, s *state) {
	gauge := func(name, help string, get func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubeferry_" + name, Help: help}, get))
	}
	gauge("state_writable", "1, or 0 while the state directory cannot be written. A crash would then repeat what was delivered meanwhile.",
		func() float64 { return oneIf(s.err() == nil) })
	gauge("dead_letters", "Dead letters in the state directory.", func() float64 { return float64(s.dead.Status().Entries) })
	gauge("dead_letter_bytes", "Size of the dead letters in the state directory. deadLetters.maxBytes limits it.",
		func() float64 { return float64(s.dead.Status().Bytes) })
	gauge("dead_letters_full", "1 while a record waits because there is no room for its dead letter.",
		func() float64 { return oneIf(s.dead.Status().Full) })
}

func oneIf(condition bool) float64 {
	if condition {
		return 1
	}
	return 0
}
