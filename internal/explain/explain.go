// Package explain says what the pipelines of a configuration make of an object, and why.
package explain

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/app"
	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// Options are what an explanation needs beside the objects.
type Options struct {
	// File is the configuration, and Config what it holds.
	File   string
	Config *config.Config
	// Old is a file with versions before.
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
	// Color paints the text.
	Color bool
	Now   func() time.Time
}

// Run explains the objects of a file, or of stdin for "-". Errors at run time are of type [app.FailureError].
func Run(ctx context.Context, options Options, path string, stdin io.Reader, out io.Writer) error {
	if options.Output != "text" && options.Output != "json" {
		return fmt.Errorf("--output is %q; there are text and json", options.Output)
	}
	x, err := newExplainer(options)
	if err != nil {
		return err
	}
	changes, err := x.read(path, stdin)
	if err != nil {
		return err
	}
	for n, change := range changes {
		said, err := x.explain(ctx, change)
		if ctx.Err() != nil {
			return &app.FailureError{Err: context.Cause(ctx)}
		}
		if err != nil {
			return &app.FailureError{Err: err}
		}
		if options.Output == "json" {
			err = writeJSON(out, said)
		} else {
			err = (&explainText{palette: palette(options.Color), many: len(changes) > 1, first: n == 0}).write(out, said)
		}
		if err != nil {
			return &app.FailureError{Err: err}
		}
	}
	return nil
}

// explainer knows a configuration, and explains what becomes of changes.
type explainer struct {
	Options
	pipelines []*pipeline.Pipeline // by their place in the configuration
	written   writtenConfig
	redactor  *pipeline.Redactor
	keyNote   string // says that digests will not be those of the exporter; empty if they are
	resource  schema.GroupVersionResource
}

func newExplainer(options Options) (x *explainer, err error) {
	loaded := options.Config
	x = &explainer{Options: options}
	if options.Type != "" && !slices.Contains(delta.Types(), delta.Type(options.Type)) {
		return nil, fmt.Errorf("--type is %q; there are ADDED, MODIFIED and DELETED", options.Type)
	}
	if options.Old != "" && options.Type == string(delta.Added) {
		return nil, errors.New("--old has a version before, which an ADDED has not")
	}
	if options.Resource != "" {
		if x.resource, err = delta.ParseResource(options.Resource); err != nil {
			return nil, fmt.Errorf("--resource: %w", err)
		}
	}
	var names []string
	for _, p := range loaded.Pipelines {
		names = append(names, p.Name)
	}
	for _, name := range options.Pipelines {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--pipeline: no pipeline named %q; there are: %s", name, strings.Join(names, ", "))
		}
	}
	if x.written, err = readWritten(options.File); err != nil {
		return nil, err
	}
	var key []byte
	key, x.keyNote = readableKey(loaded.Redaction, loaded.StateDir)
	x.redactor = pipeline.NewRedactor(key)
	x.pipelines = app.NewDryPipelines(loaded, key, nothingKnown{})
	return x, nil
}

// writtenConfig has the expressions as the file has them: what ${…} stands for may be secret.
type writtenConfig struct {
	Pipelines []struct {
		Filters []struct{ Expr string }
	}
}

func readWritten(path string) (written writtenConfig, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return written, fmt.Errorf("%s: cannot be read: %w", path, withoutPath(err))
	}
	if yaml.Unmarshal(data, &written) != nil { // it was read a moment ago
		return written, fmt.Errorf("%s: has changed meanwhile", path)
	}
	return written, nil
}

// expr is the text of an expression; empty if the file has changed meanwhile.
func (w *writtenConfig) expr(pipeline, filter int) string {
	if pipeline >= len(w.Pipelines) || filter >= len(w.Pipelines[pipeline].Filters) {
		return ""
	}
	return w.Pipelines[pipeline].Filters[filter].Expr
}

// nothingKnown stands in for the metadata of the objects that Events are about, which only a cluster has.
type nothingKnown struct{}

// Lookup implements [pipeline.Enricher].
func (nothingKnown) Lookup(delta.Reference) (json.RawMessage, bool) { return nil, false }

// readableKey is the redaction key if it can be read here, and otherwise one for this run, with a note that says so.
// Unlike [app.RedactionKey] it makes no file.
func readableKey(c config.Redaction, stateDir string) (key []byte, note string) {
	const throwaway = "the digests are made with a throw-away key: "
	var why string
	switch {
	case c.Key != "" || c.KeyFile != "":
		key, err := app.RedactionKey(c, "")
		if err == nil {
			return key, ""
		}
		why = err.Error()
	case stateDir != "":
		key, err := os.ReadFile(filepath.Join(stateDir, "redaction.key"))
		if err == nil && len(key) > 0 {
			return key, ""
		}
		why = "that of the exporter is in its state directory, which cannot be read here"
	default:
		why = "the configuration has none, and no state directory to keep one in"
	}
	return []byte(rand.Text()), throwaway + why
}

// change is an object to explain, and its version before if that is known.
type change struct {
	object, old *delta.Object
	notes       []string
}

// read reads the objects, and the versions before that belong to them.
func (x *explainer) read(path string, stdin io.Reader) ([]change, error) {
	objects, err := readManifest(path, stdin)
	if err != nil {
		return nil, err
	}
	if err := x.checkResource(objects); err != nil {
		return nil, err
	}
	var olds []*delta.Object
	if x.Old != "" {
		if x.Old == "-" && path == "-" {
			return nil, errors.New("--old and the object cannot both come from standard input")
		}
		if olds, err = readManifest(x.Old, stdin); err != nil {
			return nil, err
		}
	}
	changes := make([]change, len(objects))
	found := 0
	for i, object := range objects {
		changes[i].object = object
		n := slices.IndexFunc(olds, func(old *delta.Object) bool { return sameObject(old, object) })
		switch {
		case n >= 0:
			changes[i].old = olds[n]
			found++
		case olds != nil:
			changes[i].notes = append(changes[i].notes, "--old does not have it")
		}
	}
	if olds != nil && found == 0 {
		return nil, fmt.Errorf("--old has %s, which is none of the objects", objectName(olds[0]))
	}
	return changes, nil
}

func sameObject(a, b *delta.Object) bool {
	return a.APIVersion() == b.APIVersion() && a.Kind() == b.Kind() && a.Namespace() == b.Namespace() && a.Name() == b.Name()
}

func objectName(o *delta.Object) string {
	name := o.Name()
	if name == "" {
		name = "without a name"
	}
	if o.Namespace() != "" {
		name = o.Namespace() + "/" + name
	}
	return o.Kind() + " " + name
}

// checkResource makes sure that --resource is of one kind, and that it makes no Secret pass for something else.
func (x *explainer) checkResource(objects []*delta.Object) error {
	if x.Resource == "" {
		return nil
	}
	kind := ""
	for _, object := range objects {
		if object.APIVersion() != x.resource.GroupVersion().String() {
			continue
		}
		switch {
		case isSecret(object) != pipeline.IsSecret(x.resource):
			return fmt.Errorf("--resource %s is not that of a %s", x.Resource, object.Kind())
		case kind != "" && kind != object.Kind():
			return fmt.Errorf("--resource %s: it cannot be that of a %s and of a %s; explain them one by one", x.Resource, kind, object.Kind())
		}
		kind = object.Kind()
	}
	if kind == "" {
		return fmt.Errorf("--resource %s: no object has the apiVersion %s", x.Resource, x.resource.GroupVersion())
	}
	return nil
}

// isSecret takes a kind that is not quite right for one as well: nothing of it must be shown.
func isSecret(o *delta.Object) bool {
	return o.APIVersion() == "v1" && strings.EqualFold(o.Kind(), "Secret")
}

// resourceOf is the resource of an object.
func (x *explainer) resourceOf(object *delta.Object) schema.GroupVersionResource {
	if x.Resource != "" && object.APIVersion() == x.resource.GroupVersion().String() {
		return x.resource
	}
	if isSecret(object) {
		return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	}
	return guessResource(schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind()), x.Config.Sources)
}

// typeOf is what happened to the object.
func (x *explainer) typeOf(c change) delta.Type {
	switch {
	case x.Type != "":
		return delta.Type(x.Type)
	case c.old != nil:
		return delta.Modified
	default:
		return delta.Added
	}
}
