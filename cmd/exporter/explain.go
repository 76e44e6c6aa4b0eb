package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
)

// explainFlags are the command line of explain.
type explainFlags struct {
	config, old, change, resource, output string
	color                                 colorMode
	pipelines                             []string
	snapshot                              bool
}

func newExplain() *cobra.Command {
	var flags explainFlags
	command := &cobra.Command{
		Use:   "explain --config FILE [OBJECT|-]",
		Short: "Say what each pipeline makes of an object, and why",
		Long: `explain takes objects from a file or from standard input (YAML or JSON, one or many, lists too) and says of each
pipeline whether it would send them and where to, or which source, filter or transform is in the way, and on which
values. Then it shows the record. It needs no cluster and no sink, and touches no state directory.

The data of Secrets are shown as digests, and so is what a transform redacts.

An object is taken as ADDED, or as MODIFIED if --old has the version before; what looks at the version before needs it.
It exits 0 whether or not anything would be sent, and 2 if the configuration or an object cannot be read.`,
		Example: `  exporter explain --config kubeferry.yaml pod.yaml
  kubectl get deployment web -o yaml | exporter explain --config kubeferry.yaml
  kubectl get pods -A -o json | exporter explain -c kubeferry.yaml --pipeline audit -o json | jq '.pipelines[].answer'
  exporter explain -c kubeferry.yaml --old before.yaml after.yaml
  exporter explain -c kubeferry.yaml --type DELETED pod.yaml
  exporter explain -c kubeferry.yaml --resource example.com/v1/mice mouse.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			path := "-"
			if len(args) == 1 {
				path = args[0]
			} else if isTerminal(command.InOrStdin()) {
				return errors.New("name the file of an object, or send one: kubectl get pod NAME -o yaml | exporter explain --config FILE")
			}
			return explain(command.Context(), flags, path, command.InOrStdin(), command.OutOrStdout(), time.Now)
		},
	}
	addConfigFlag(command, &flags.config)
	f := command.Flags()
	f.StringVar(&flags.old, "old", "", "the `file` of the version before, or of several")
	f.StringVar(&flags.change, "type", "", "what happened: ADDED, MODIFIED or DELETED; default MODIFIED with --old, else ADDED")
	f.BoolVar(&flags.snapshot, "snapshot", false, "take an ADDED as one of the state found at first")
	f.StringArrayVar(&flags.pipelines, "pipeline", nil, "explain the pipeline of this `name` only; may be repeated")
	f.StringVar(&flags.resource, "resource", "", "the `resource` of the objects, where it cannot be guessed from the kind: example.com/v1/mice")
	f.StringVarP(&flags.output, "output", "o", "text", "text, or json: one value for each object")
	f.StringVar((*string)(&flags.color), "color", string(colorAuto), "auto, always or never; auto is at a terminal, unless NO_COLOR is set")
	return command
}

// explain is the command.
func explain(ctx context.Context, flags explainFlags, path string, stdin io.Reader, out io.Writer, now func() time.Time) error {
	if flags.output != "text" && flags.output != "json" {
		return fmt.Errorf("--output is %q; there are text and json", flags.output)
	}
	color, err := flags.color.wanted(out, os.Getenv)
	if err != nil {
		return err
	}
	x, err := newExplainer(flags, now)
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
			return &failureError{context.Cause(ctx)}
		}
		if err != nil {
			return &failureError{err}
		}
		if flags.output == "json" {
			err = writeJSON(out, said)
		} else {
			err = (&explainText{palette: palette(color), many: len(changes) > 1, first: n == 0}).write(out, said)
		}
		if err != nil {
			return &failureError{err}
		}
	}
	return nil
}

// explainer knows a configuration, and explains what becomes of changes.
type explainer struct {
	flags     explainFlags
	config    *config.Config
	pipelines []*pipeline.Pipeline // by their place in the configuration
	written   writtenConfig
	redactor  *pipeline.Redactor
	keyNote   string // says that digests will not be those of the exporter; empty if they are
	resource  schema.GroupVersionResource
	now       func() time.Time
}

func newExplainer(flags explainFlags, now func() time.Time) (*explainer, error) {
	loaded, err := loadQuietly(flags.config)
	if err != nil {
		return nil, err
	}
	x := &explainer{flags: flags, config: loaded, now: now}
	if flags.change != "" && !slices.Contains(delta.Types(), delta.Type(flags.change)) {
		return nil, fmt.Errorf("--type is %q; there are ADDED, MODIFIED and DELETED", flags.change)
	}
	if flags.old != "" && flags.change == string(delta.Added) {
		return nil, errors.New("--old has a version before, which an ADDED has not")
	}
	if flags.resource != "" {
		if x.resource, err = delta.ParseResource(flags.resource); err != nil {
			return nil, fmt.Errorf("--resource: %w", err)
		}
	}
	var names []string
	for _, p := range loaded.Pipelines {
		names = append(names, p.Name)
	}
	for _, name := range flags.pipelines {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("--pipeline: no pipeline named %q; there are: %s", name, strings.Join(names, ", "))
		}
	}
	if x.written, err = readWritten(flags.config); err != nil {
		return nil, err
	}
	var key []byte
	key, x.keyNote = readableKey(loaded.Redaction, loaded.StateDir)
	x.redactor = pipeline.NewRedactor(key)
	// The pipelines are those of a run but for their sinks, which are not opened; nothing is ever handed to them.
	unopened := map[string]openSink{}
	for _, sink := range loaded.Sinks {
		unopened[sink.Name] = openSink{limits: sink.Config.Limits()}
	}
	x.pipelines = newPipelines(loaded, unopened, key, nothingKnown{}, &state{}, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
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
// Unlike [redactionKey] it makes no file.
func readableKey(c config.Redaction, stateDir string) (key []byte, note string) {
	const throwaway = "the digests are made with a throw-away key: "
	var why string
	switch {
	case c.Key != "" || c.KeyFile != "":
		key, err := redactionKey(c, "")
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
	if x.flags.old != "" {
		if x.flags.old == "-" && path == "-" {
			return nil, errors.New("--old and the object cannot both come from standard input")
		}
		if olds, err = readManifest(x.flags.old, stdin); err != nil {
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
	if x.flags.resource == "" {
		return nil
	}
	kind := ""
	for _, object := range objects {
		if object.APIVersion() != x.resource.GroupVersion().String() {
			continue
		}
		switch {
		case isSecret(object) != pipeline.IsSecret(x.resource):
			return fmt.Errorf("--resource %s is not that of a %s", x.flags.resource, object.Kind())
		case kind != "" && kind != object.Kind():
			return fmt.Errorf("--resource %s: it cannot be that of a %s and of a %s; explain them one by one", x.flags.resource, kind, object.Kind())
		}
		kind = object.Kind()
	}
	if kind == "" {
		return fmt.Errorf("--resource %s: no object has the apiVersion %s", x.flags.resource, x.resource.GroupVersion())
	}
	return nil
}

// isSecret takes a kind that is not quite right for one as well: nothing of it must be shown.
func isSecret(o *delta.Object) bool {
	return o.APIVersion() == "v1" && strings.EqualFold(o.Kind(), "Secret")
}

// resourceOf is the resource of an object.
func (x *explainer) resourceOf(object *delta.Object) schema.GroupVersionResource {
	if x.flags.resource != "" && object.APIVersion() == x.resource.GroupVersion().String() {
		return x.resource
	}
	if isSecret(object) {
		return schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	}
	return guessResource(schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind()), x.config.Sources)
}

// typeOf is what happened to the object.
func (x *explainer) typeOf(c change) delta.Type {
	switch {
	case x.flags.change != "":
		return delta.Type(x.flags.change)
	case c.old != nil:
		return delta.Modified
	default:
		return delta.Added
	}
}
