// Package tail shows the changes of a cluster, or what a pipeline would send of them. It runs watches and a pipeline as package
// app does, with a sink that prints.
package tail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"gopkg.in/yaml.v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/rbac"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/source"
)

// Options are what to show.
type Options struct {
	// Resources by the names that kubectl takes; none for all that may be read, but those that change most.
	Resources []string
	// Namespaces to show, by names or globs; none for all. Without Resources, what belongs to no namespace is shown with all of them only.
	Namespaces []string
	// Selector, FieldSelector, Filter and Types leave changes out, as they do in a configuration.
	Selector, FieldSelector, Filter string
	Types                           []string

	// Config, if it is set, takes the place of all of the above: what its Pipeline would send is shown.
	Config   *config.Config
	Pipeline string

	Snapshot bool          // also what exists already
	Output   string        // table, json or yaml
	For      time.Duration // from when all watches are open; 0 for no end
	Version  string
	Out, Err io.Writer
}

// drainTimeout is how long what was observed before the end may take to be printed.
const drainTimeout = time.Second

// Run shows changes until ctx or the time ends. Errors at run time are of type [app.FailureError].
func Run(ctx context.Context, o Options, cluster *rest.Config) error {
	if !slices.Contains([]string{"table", "json", "yaml"}, o.Output) {
		return fmt.Errorf("--output is %q; there are table, json and yaml", o.Output)
	}
	client, err := source.NewClient(cluster, false)
	if err != nil {
		return err
	}
	loaded, shown := o.Config, (*config.Sink)(nil)
	if o.Config == nil {
		loaded, err = o.made(ctx, cluster)
	} else {
		if shown, err = o.pick(); err == nil {
			err = app.Resolve(ctx, loaded, cluster)
		}
	}
	if err != nil {
		return err
	}
	o.prepare(loaded)
	if err := o.checkRights(ctx, loaded, client); err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	p := newPrinter(o, shown, end)
	if err := p.header(); err != nil {
		return &app.FailureError{Err: err}
	}
	loaded.Sinks = []config.Sink{{Name: loaded.Pipelines[0].Sink, Kind: "tail", Config: p}}
	logger := app.NewLogger(config.Log{Level: "warn", Format: "text"}, o.Err)
	err = app.Run(ctx, loaded, cluster, o.Version, func() {
		names := loaded.ResourceNames()
		text := strings.Join(names, ", ")
		if len(names) > 5 {
			text = fmt.Sprintf("%d resources", len(names))
		}
		if len(o.Namespaces) > 0 {
			text += " in " + strings.Join(o.Namespaces, ", ")
		}
		fmt.Fprintln(o.Err, "watching "+text+"; Ctrl-C ends it")
		if o.For > 0 {
			time.AfterFunc(o.For, func() { end(nil) })
		}
	}, logger)
	var failed *writeError
	if errors.As(context.Cause(ctx), &failed) && !errors.Is(failed, syscall.EPIPE) { // a closed pipe is how `| head` ends it
		return &app.FailureError{Err: failed}
	}
	return err
}

// prepare makes of a configuration one that keeps nothing and serves nothing.
func (o *Options) prepare(loaded *config.Config) {
	loaded.StateDir, loaded.Server.Listen = "", ""
	loaded.LeaderElection, loaded.Replication = nil, nil
	loaded.Shutdown.Grace = drainTimeout
	for i := range loaded.Sources {
		loaded.Sources[i].Snapshot = delta.SnapshotNever
		if o.Snapshot {
			loaded.Sources[i].Snapshot = delta.SnapshotInitial
		}
	}
	shown := &loaded.Pipelines[0]
	shown.DeadLetter, shown.RedactSecrets, shown.Rate = "", true, nil
	if o.Output == "table" { // it needs both versions, in a form that it can read
		shown.Format, shown.Profile, shown.Diff = shape.FormatJSON, shape.ProfileKubeferry, shape.DiffOldObject
	}
}

// pick leaves of the configuration the pipeline to show, and returns its sink.
func (o *Options) pick() (*config.Sink, error) {
	c := o.Config
	n := slices.Index(c.PipelineNames(), o.Pipeline)
	if o.Pipeline == "" && len(c.Pipelines) == 1 {
		n = 0
	}
	if n < 0 {
		return nil, fmt.Errorf("--pipeline: no pipeline named %q; there are: %s", o.Pipeline, strings.Join(c.PipelineNames(), ", "))
	}
	c.Pipelines = c.Pipelines[n : n+1]
	c.Sources = slices.DeleteFunc(c.Sources, func(s config.Source) bool { return !slices.Contains(c.Pipelines[0].Sources, s.Name) })
	if _, err := app.FindRedactionKey(c.Redaction, ""); err != nil { // that of kubeferry cannot be read here
		c.Redaction = config.Redaction{}
	}
	if !c.Pipelines[0].RedactSecrets {
		fmt.Fprintln(o.Err, "the pipeline sends the data of Secrets as they are (redactSecrets: false); digests are shown here")
	}
	sink := slices.IndexFunc(c.Sinks, func(s config.Sink) bool { return s.Name == c.Pipelines[0].Sink })
	return &c.Sinks[sink], nil // the configuration is valid
}

// busiest are the resources that change most, and that few people want to see. They are shown only if they are named.
var busiest = []string{"endpoints", "endpointslices.discovery.k8s.io", "events", "events.events.k8s.io", "leases.coordination.k8s.io"}

// made makes the configuration of what the options name.
func (o *Options) made(ctx context.Context, cluster *rest.Config) (*config.Config, error) {
	catalog, err := resources.Read(ctx, cluster)
	if err != nil {
		return nil, &app.FailureError{Err: err}
	}
	chosen := slices.DeleteFunc(catalog.All(), func(s source.Served) bool {
		return slices.Contains(busiest, s.GroupResource().String()) || !s.Namespaced && len(o.Namespaces) > 0
	})
	if len(o.Resources) > 0 {
		if chosen, err = catalog.Find(o.Resources); err != nil {
			return nil, &app.FailureError{Err: err}
		}
	}
	var namespaced, others []string
	for _, s := range chosen {
		if name := delta.ResourceName(s.GroupVersionResource); s.Namespaced {
			namespaced = append(namespaced, name)
		} else {
			others = append(others, name)
		}
	}
	return o.parse(namespaced, others)
}

// parse makes a configuration by way of its text, so that it is checked as a file is.
// Those resources that belong to no namespace are a source of their own: as with kubectl, the namespace does not matter to them.
func (o *Options) parse(namespaced, others []string) (*config.Config, error) {
	var filters []map[string]any
	if len(o.Types) > 0 {
		filters = append(filters, map[string]any{"types": strings.Split(strings.ToUpper(strings.Join(o.Types, ",")), ",")})
	}
	if o.Filter != "" {
		filters = append(filters, map[string]any{"expr": o.Filter})
	}
	included := map[string]any{"include": o.Namespaces}
	if len(o.Namespaces) == 0 {
		namespaced, others, included = append(namespaced, others...), nil, nil
	}
	var sources []any
	for _, part := range []struct {
		name       string
		resources  []string
		namespaces map[string]any
	}{
		{"tail", namespaced, included},
		{"cluster-scoped", others, nil},
	} {
		if len(part.resources) > 0 {
			sources = append(sources, map[string]any{
				"name": part.name, "resources": part.resources, "namespaces": part.namespaces, "labelSelector": o.Selector, "fieldSelector": o.FieldSelector,
			})
		}
	}
	pipeline := map[string]any{"name": "tail", "format": "json", "sink": "tail"}
	if len(filters) > 0 {
		pipeline["filters"] = filters
	}
	text, err := yaml.Marshal(map[string]any{
		"cluster":   "tail",
		"sources":   sources,
		"pipelines": []any{pipeline},
		"sinks":     []any{map[string]any{"name": "tail", "stdout": map[string]any{}}},
	})
	if err != nil {
		return nil, err
	}
	literal := strings.ReplaceAll(string(text), "${", "$${")
	loaded, _, err := config.Parse([]byte(literal), "tail", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
	var faults config.Faults
	if errors.As(err, &faults) { // each names what it is about; the flags have no lines
		var messages []string
		for _, fault := range faults {
			messages = append(messages, fault.Message)
		}
		err = errors.New(strings.Join(messages, "\n"))
	}
	return loaded, err
}

// checkRights returns an error if a right to watch is missing. If no resource is named, it leaves out of the configuration what is forbidden.
func (o *Options) checkRights(ctx context.Context, loaded *config.Config, client *source.Client) error {
	needed := slices.DeleteFunc(rbac.Needed(loaded), func(r rbac.Rule) bool { return !slices.Contains(r.Verbs, "watch") })
	missing, errs := make([]bool, len(needed)), make([]error, len(needed))
	var checking sync.WaitGroup
	for n, rule := range needed {
		checking.Go(func() {
			verb, err := rule.Missing(ctx, client)
			if missing[n] = verb != "" && err == nil; !apierrors.IsForbidden(err) { // where reviews are forbidden, the watch will show it
				errs[n] = err
			}
		})
	}
	checking.Wait()
	if err := errors.Join(errs...); err != nil {
		return &app.FailureError{Err: fmt.Errorf("check the rights: %w", err)}
	}
	lines, left := []string{"you may not list and watch all of this; what is missing is"}, []string{}
	for n, rule := range needed {
		if !missing[n] {
			continue
		}
		lines = append(lines, "  a "+rule.String())
		loaded.Sources[0].Resources = slices.DeleteFunc(loaded.Sources[0].Resources, func(r schema.GroupVersionResource) bool {
			forbidden := r.Group == rule.Group && r.Resource == rule.Resource
			if forbidden {
				left = append(left, delta.ResourceName(r))
			}
			return forbidden
		})
	}
	switch {
	case len(lines) == 1:
	case len(o.Resources) > 0 || o.Config != nil || len(loaded.Sources[0].Resources) == 0:
		if len(o.Namespaces) == 0 && o.Config == nil {
			lines = append(lines, "With --namespace NAME the rights in that namespace are enough.")
		}
		return &app.FailureError{Err: errors.New(strings.Join(lines, "\n"))}
	default:
		fmt.Fprintf(o.Err, "not shown, since you may not list and watch them: %s\n", strings.Join(left, ", "))
	}
	return nil
}

// Names returns names for resources of a cluster, for completion; none if they cannot be read.
func Names(ctx context.Context, cluster *rest.Config) []string {
	catalog, err := resources.Read(ctx, cluster)
	if err != nil {
		return nil
	}
	return catalog.Names()
}
