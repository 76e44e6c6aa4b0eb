package replay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// Recover writes what can be read of a state file that was set aside as dead letters, one JSON object a line, for Run to
// send. summary takes what was found. The error is an [app.FailureError] that names what could not be read; what could was
// written.
func Recover(loaded *config.Config, path string, letters, summary io.Writer) error {
	pipelines := map[string]*pipeline.Pipeline{}
	for _, p := range app.NewDryPipelines(loaded, nil, nil) {
		pipelines[p.Name()] = p
	}
	changes, dead := 0, 0
	skipped := map[string]int{}
	encoder := json.NewEncoder(letters)
	encoder.SetEscapeHTML(false)
	damage := checkpoint.Salvage(path, checkpoint.Salvaged{
		Entry: func(name string, e delta.Entry) error {
			p, ok := pipelines[name]
			if !ok {
				skipped[name]++
				return nil
			}
			changes++
			return encoder.Encode(p.Recovered(e))
		},
		Letter: func(letter []byte) error {
			dead++
			_, err := letters.Write(append(bytes.TrimSpace(letter), '\n'))
			return err
		},
	})
	_, err := fmt.Fprintf(summary, "recovered %d undelivered changes and %d dead letters\n", changes, dead)
	for name, n := range skipped {
		err = errors.Join(err, fmt.Errorf("%d changes of a pipeline %q, which is not configured, were left out", n, name))
	}
	if err := errors.Join(damage, err); err != nil {
		return &app.FailureError{Err: err}
	}
	return nil
}
