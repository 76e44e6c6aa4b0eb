// Package explain reports what the pipelines of a configuration make of an object, and why.
package explain

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// Options are what an explanation needs beside the objects.
type Options struct {
	Config *config.Config
	// Old is a file with previous versions.
	Old string
	// Type is what happened to the objects: ADDED, MODIFIED or DELETED. Empty is MODIFIED with Old, else ADDED.
	Type string
	// Resource is that of the objects, where it cannot be guessed from the kind: example.com/v1/mice.
	Resource string
	// Pipelines are those to explain; empty for all.
	Pipelines []string
	// Snapshot takes an ADDED as one of the state found at first.
	Snapshot bool
	// Output is text or json.
	Output string
	// ExitCode makes it an error if nothing would be sent.
	ExitCode bool
	Now      func() time.Time
}

// Run explains the objects of a file, or of stdin for "-". Errors at run time are of type [app.FailureError].
func Run(ctx context.Context, options Options, path string, stdin io.Reader, out io.Writer) error {
	x, err := newExplainer(options)
	if err != nil {
		return err
	}
	changes, err := x.read(path, stdin)
	if err != nil {
		return err
	}
	sent := false
	for i, change := range changes {
		answer, err := x.explain(ctx, change)
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		sent = sent || slices.ContainsFunc(answer.Pipelines, func(p pipelineAnswer) bool { return p.Sent })
		switch {
		case err != nil:
		case options.Output == "json":
			err = writeJSON(out, answer)
		default:
			if i > 0 {
				fmt.Fprintln(out)
			}
			err = writeText(out, answer)
		}
		if err != nil {
			return &app.FailureError{Err: err}
		}
	}
	if options.ExitCode && !sent {
		return &app.FailureError{Err: errors.New("nothing would be sent")}
	}
	return nil
}

// explainer has the pipelines of a configuration, to which nothing is ever handed over.
type explainer struct {
	Options
	pipelines []*pipeline.Pipeline // in the order of the configuration
	redactor  *shape.Redactor
	keyNote   string                      // why digests are not those of kubeferry; empty if they are
	resource  schema.GroupVersionResource // Options.Resource
}

func newExplainer(options Options) (x *explainer, err error) {
	x = &explainer{Options: options}
	switch {
	case x.Output != "text" && x.Output != "json":
		return nil, fmt.Errorf("--output is %q; there are text and json", x.Output)
	case x.Type != "" && !slices.Contains(delta.Types(), delta.Type(x.Type)):
		return nil, fmt.Errorf("--type is %q; there are ADDED, MODIFIED and DELETED", x.Type)
	case x.Old != "" && x.Type == string(delta.Added):
		return nil, errors.New("--old does not go with --type ADDED: it has no previous version")
	case x.Resource != "":
		if x.resource, err = delta.ParseResource(x.Resource); err != nil {
			return nil, fmt.Errorf("--resource: %w", err)
		}
	}
	if unresolved := x.Config.Unresolved(); len(unresolved) > 0 {
		return nil, fmt.Errorf("only the API server can resolve %s: write them as apps/v1/deployments; `kubeferry init %s` does", strings.Join(unresolved, ", "), strings.Join(unresolved, " "))
	}
	names := x.Config.PipelineNames()
	for _, name := range x.Pipelines {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--pipeline: no pipeline named %q; there are: %s", name, strings.Join(names, ", "))
		}
	}
	key, keyNote := redactionKey(x.Config)
	x.redactor, x.keyNote = shape.NewRedactor(key, x.Config.Cluster), keyNote
	x.pipelines = app.NewDryPipelines(x.Config, key, nothingKnown{})
	return x, nil
}

// nothingKnown stands in for the metadata of the objects that Events are about, which only a cluster has.
type nothingKnown struct{}

// Lookup implements [shape.Enricher].
func (nothingKnown) Lookup(string, delta.Reference) (json.RawMessage, bool) { return nil, false }

// redactionKey returns kubeferry's key if it can be read here, and otherwise one for this run, with a note why.
func redactionKey(c *config.Config) (key []byte, note string) {
	key, err := app.FindRedactionKey(c.Redaction, c.StateDir)
	switch {
	case len(key) > 0:
		return key, ""
	case err != nil:
		note = err.Error()
	case c.StateDir != "":
		note = "that of kubeferry is in its state directory, which cannot be read here"
	default:
		note = "the configuration has none, and no state directory to keep one in"
	}
	return []byte(rand.Text()), "the digests are made with a throw-away key: " + note
}
