package app

import (
	"context"
	"log/slog"
	"slices"
	"time"
)

// CloseTimeout bounds each step of the end that waits for a peer.
const CloseTimeout = 5 * time.Second

// lifecycle is the stack of what was started, by name. It stops the last one first.
type lifecycle struct{ started []started }

type started struct {
	name string
	stop func(ctx context.Context)
}

// onStop pushes what was started. Its stop is called once; the context ends after [CloseTimeout], for parts that wait for a peer.
func (l *lifecycle) onStop(name string, stop func(ctx context.Context)) {
	l.started = append(l.started, started{name, stop})
}

// stop stops all parts, and forgets them.
func (l *lifecycle) stop(logger *slog.Logger) {
	for _, p := range slices.Backward(l.started) {
		logger.Debug("stop", "part", p.name)
		ctx, cancel := context.WithTimeout(context.Background(), CloseTimeout)
		p.stop(ctx)
		cancel()
	}
	l.started = nil
}
