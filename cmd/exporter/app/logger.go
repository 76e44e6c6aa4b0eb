package app

import (
	"io"
	"log/slog"

	"k8s.io/klog/v2"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

// UserAgent names the program and its version to peers.
func UserAgent(version string) string { return "kubeferry/" + version }

// NewLogger returns the logger of a run. client-go logs through it from Warn on: at Info it reports of each watch that
// waits for a full backlog, which /status shows.
func NewLogger(settings config.Log, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(settings.Level)) // validated when the file was loaded
	handler := func(level slog.Level) slog.Handler {
		options := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // JSON would show nanoseconds
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}}
		if settings.Format == "text" {
			return slog.NewTextHandler(w, options)
		}
		return slog.NewJSONHandler(w, options)
	}
	klog.SetSlogLogger(slog.New(handler(max(level, slog.LevelWarn))).With("component", "client-go"))
	return slog.New(handler(level))
}
