package app

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/source"
)

// Objects that no source has any more are not forgotten in silence, nor is what waits for a pipeline that is gone.
func TestWhatIsForgottenIsLogged(t *testing.T) {
	var log bytes.Buffer
	client, err := source.NewClient(&rest.Config{Host: olderServer(t).URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	kept, err := openState(t.Context(), &config.Config{Cluster: "c", StateDir: olderState(t)}, client, nil, func(err error) { t.Error(err) }, logger)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.close()
	if err := kept.restore(nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"resource=v1/things namespace=\"\" objects=4\n", "pipeline=late entries=2 "} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no line with %q in\n%s", want, &log)
		}
	}
}
