package app

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
)

// OpenSink is a sink with the limits of its configuration.
type OpenSink struct {
	sinks.Sink
	Limits sinks.Limits
	calls  *calls
	slots  *sinks.Slots
}

// defaultLetters is the name of the sink that takes dead letters where none is configured; no configured name has a
// blank.
const defaultLetters = "dead letters"

// usedSinks are the sinks that some pipeline delivers to, or writes its dead letters to.
func usedSinks(loaded *config.Config) []config.Sink {
	return slices.DeleteFunc(slices.Clone(loaded.Sinks), func(s config.Sink) bool {
		return !slices.ContainsFunc(loaded.Pipelines, func(p config.Pipeline) bool { return p.Sink == s.Name || p.DeadLetter == s.Name })
	})
}

// OpenSinks opens sinks, by name, and the default one for dead letters if there is a state directory. Pipelines that name
// the same sink share it.
func OpenSinks(ctx context.Context, configured []config.Sink, stateDir, userAgent string, logger *slog.Logger) (map[string]OpenSink, error) {
	if stateDir != "" {
		letters := file.NewConfig()
		letters.Path = filepath.Join(stateDir, "dead.jsonl")
		configured = append(slices.Clone(configured), config.Sink{Name: defaultLetters, Kind: "file", Config: letters})
	}
	opened := map[string]OpenSink{}
	for _, c := range configured {
		env := sinks.Env{Name: c.Name, UserAgent: userAgent, Logger: logger.With("sink", c.Name)}
		sink, err := c.Config.Open(ctx, env)
		if err != nil {
			CloseSinks(ctx, opened, logger)
			return nil, fmt.Errorf("open sink %q: %w", c.Name, err)
		}
		limits, calls := c.Config.Limits(), newCalls(sink)
		opened[c.Name] = OpenSink{Sink: calls, Limits: limits, calls: calls, slots: sinks.NewSlots(limits.Concurrency)}
	}
	return opened, nil
}

// CloseSinks closes sinks within ctx. An error of one is logged.
func CloseSinks(ctx context.Context, opened map[string]OpenSink, logger *slog.Logger) {
	for name, sink := range opened {
		if err := sink.Close(ctx); err != nil {
			logger.Warn("close sink", "sink", name, "err", err)
		}
	}
}
