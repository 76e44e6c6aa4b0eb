package app

import (
	"context"
	"io"
	"log/slog"

	"k8s.io/klog/v2"

	"github.com/kubeferry/kubeferry/internal/config"
)

// UserAgent names the program and its version to peers.
func UserAgent(version string) string { return "kubeferry/" + version }

// NewLogger returns the logger of a run, which client-go uses as well.
func NewLogger(settings config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(settings.Level)) // validated when the file was loaded
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // JSON would show nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}}
	var handler slog.Handler = slog.NewJSONHandler(w, options)
	if settings.Format == "text" {
		handler = slog.NewTextHandler(w, options)
	}
	logger := slog.New(handler)
	klog.SetSlogLogger(slog.New(atLeast{handler, max(level, slog.LevelWarn)}).With("component", "client-go"))
	return logger
}

// atLeast passes what is severe enough. client-go tells at Info what a watch that waits for a full backlog shows on
// /status already.
type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h atLeast) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}

func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}
