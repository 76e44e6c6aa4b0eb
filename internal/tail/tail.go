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
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/internal/app"
	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/rbac"
	"github.com/kubeferry/kubeferry/internal/resources"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/source"
)

// Options are what to show.
type Options struct {
	// Resources by the names that kubectl takes; none for all that may be read, but those that change most.
	Resources  []string
	Namespaces []string // none for all
	// Selector, FieldSelector, Filter and Types leave changes out, as they do in a configuration.
	Selector, FieldSelector, Filter string
	Types                           []string

	// Config, if it is set, takes the place of all of the above: what its Pipeline would send is shown.
	Config   *config.Config
	Pipeline string

	Snapshot bool          // also what exists already
	Output   string        // table, json or yaml
	For      time.Duration // 0 for no end
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
		loaded, err = o.made(ctx, cluster, client)
	} else {
		shown, err = o.pick(ctx, client)
	}
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.For)
		defer cancel()
	}
	p := newPrinter(o, shown, end)
	if err := p.header(); err != nil {
		return &app.FailureError{Err: err}
	}
	o.prepare(loaded, p)
	logger := app.NewLogger(config.Log{Level: "warn", Format: "text"}, o.Err)
	err = app.Run(ctx, loaded, cluster, o.Version, func() {
		fmt.Fprintln(o.Err, "watching "+watched(loaded)+"; Ctrl-C ends it")
	}, logger)
	var failed *writeError
	if errors.As(context.Cause(ctx), &failed) && !errors.Is(failed, syscall.EPIPE) { // a closed pipe is how `| head` ends it
		return &app.FailureError{Err: failed}
	}
	return err
}

// prepare makes of a configuration one that keeps nothing, serves nothing and sends nothing.
func (o *Options) prepare(loaded *config.Config, p *printer) {
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
	shown.DeadLetter, shown.RedactSecrets = "", true
	if o.Output == "table" { // it needs both versions, in a form that it can read
		shown.Format, shown.Profile, shown.Diff = pipeline.FormatJSON, pipeline.ProfileKubeferry, pipeline.DiffOldObject
	}
	loaded.Sinks = []config.Sink{{Name: shown.Sink, Kind: "tail", Config: p}}
}

// pick leaves of the configuration the pipeline to show, and returns its sink.
func (o *Options) pick(ctx context.Context, client *source.Client) (*config.Sink, error) {
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
	if key, err := app.FindRedactionKey(c.Redaction, c.StateDir); err != nil || len(key) == 0 {
		c.Redaction = config.Redaction{} // that of the exporter cannot be read here
	} else {
		c.Redaction = config.Redaction{Key: string(key)}
	}
	if !c.Pipelines[0].RedactSecrets {
		fmt.Fprintln(o.Err, "the pipeline sends the data of Secrets as they are (redactSecrets: false); digests are shown here")
	}
	var access []source.Access
	for _, s := range c.Sources {
		options := source.Options{Resources: s.Resources, Namespaces: s.Namespaces, FieldSelector: s.FieldSelector}
		access = append(access, options.Access()...)
	}
	missing, err := missingRights(ctx, client, access)
	if err == nil && len(missing) > 0 {
		err = forbidden(missing)
	}
	sink := slices.IndexFunc(c.Sinks, func(s config.Sink) bool { return s.Name == c.Pipelines[0].Sink })
	return &c.Sinks[sink], err // the configuration is valid
}

// busiest change all the time and are of interest to few: without a name they are left out.
var busiest = []string{"endpoints", "endpointslices.discovery.k8s.io", "events", "events.events.k8s.io", "leases.coordination.k8s.io"}

// made makes the configuration of what the options name.
func (o *Options) made(ctx context.Context, cluster *rest.Config, client *source.Client) (*config.Config, error) {
	catalog, err := resources.Read(ctx, cluster)
	if err != nil {
		return nil, &app.FailureError{Err: err}
	}
	var chosen []source.Served
	if len(o.Resources) > 0 {
		if chosen, err = catalog.Find(o.Resources); err != nil {
			return nil, &app.FailureError{Err: err}
		}
	} else {
		chosen = slices.DeleteFunc(catalog.All(), func(s source.Served) bool {
			return slices.Contains(busiest, s.GroupResource().String()) || !s.Namespaced && len(o.Namespaces) > 0
		})
	}
	var access []source.Access
	for _, s := range chosen {
		if !s.Namespaced && len(o.Namespaces) > 0 {
			return nil, fmt.Errorf("%s have no namespace: show them without --namespace", s.Resource)
		}
		options := source.Options{FieldSelector: o.FieldSelector, Namespaces: delta.Namespaces{Include: o.Namespaces}}
		options.Resources = append(options.Resources, s.GroupVersionResource)
		access = append(access, options.Access()...)
	}
	missing, err := missingRights(ctx, client, access)
	if err != nil {
		return nil, err
	}
	var names, left []string
	for _, s := range chosen {
		name := delta.ResourceName(s.GroupVersionResource)
		if slices.ContainsFunc(missing, func(r rbac.Rule) bool { return r.Group == s.Group && r.Resource == s.Resource }) {
			left = append(left, name)
		} else {
			names = append(names, name)
		}
	}
	switch {
	case len(left) > 0 && (len(o.Resources) > 0 || len(names) == 0):
		return nil, forbidden(missing)
	case len(left) > 0:
		fmt.Fprintf(o.Err, "not shown, since you may not list and watch them: %s\n", strings.Join(left, ", "))
	}
	return o.parse(names)
}

// parse makes a configuration by way of its text, so that it is checked as a file is.
func (o *Options) parse(names []string) (*config.Config, error) {
	var filters []map[string]any
	if len(o.Types) > 0 {
		filters = append(filters, map[string]any{"types": strings.Split(strings.ToUpper(strings.Join(o.Types, ",")), ",")})
	}
	if o.Filter != "" {
		filters = append(filters, map[string]any{"expr": o.Filter})
	}
	from := map[string]any{"name": "tail", "resources": names, "labelSelector": o.Selector, "fieldSelector": o.FieldSelector}
	if len(o.Namespaces) > 0 {
		from["namespaces"] = map[string]any{"include": o.Namespaces}
	}
	text, err := yaml.Marshal(map[string]any{
		"cluster":   "tail",
		"sources":   []any{from},
		"pipelines": []any{map[string]any{"name": "tail", "filters": filters, "format": "json", "sink": "tail"}},
		"sinks":     []any{map[string]any{"name": "tail", "stdout": map[string]any{}}},
	})
	if err != nil {
		return nil, err
	}
	literal := strings.ReplaceAll(string(text), "${", "$${")
	loaded, _, err := config.Parse([]byte(literal), "tail", config.Options{Kinds: []sinks.Kind{stdout.Kind()}})
	var faults config.Faults
	if errors.As(err, &faults) {
		return nil, errors.New(inFlags(faults))
	}
	return loaded, err
}

// inFlags writes faults of the configuration that was made as those of the flags that it was made of.
func inFlags(faults config.Faults) string {
	var lines []string
	for _, fault := range faults {
		place := fault.Path
		for part, flag := range map[string]string{
			"labelSelector": "--selector", "fieldSelector": "--field-selector", ".types": "--types", ".expr": "--filter", ".namespaces": "--namespace",
		} {
			if strings.Contains(fault.Path, part) {
				place = flag
			}
		}
		lines = append(lines, place+": "+fault.Message)
	}
	return strings.Join(lines, "\n")
}

// missingRights returns the rights to watch that the API server does not grant. Where reviews of rights are forbidden, it returns none.
func missingRights(ctx context.Context, client *source.Client, access []source.Access) ([]rbac.Rule, error) {
	missing, errs := make([]*rbac.Rule, len(access)), make([]error, len(access))
	var checking sync.WaitGroup
	for n, a := range access {
		checking.Go(func() {
			rule := rbac.Rule{Namespace: a.Namespace, Group: a.Resource.Group, Resource: a.Resource.Resource, Name: a.Name, Verbs: []string{"list", "watch"}}
			for _, verb := range rule.Verbs {
				granted, err := client.Granted(ctx, map[string]any{
					"namespace": rule.Namespace, "group": rule.Group, "resource": rule.Resource, "name": rule.Name, "verb": verb,
				})
				switch {
				case apierrors.IsForbidden(err): // the watch itself will show it
				case err != nil:
					errs[n] = err
				case !granted:
					missing[n] = &rule
				}
			}
		})
	}
	checking.Wait()
	var rules []rbac.Rule
	for _, rule := range missing {
		if rule != nil {
			rules = append(rules, *rule)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, &app.FailureError{Err: fmt.Errorf("check the rights: %w", err)}
	}
	return rules, nil
}

// forbidden is the error of rights that are missing.
func forbidden(missing []rbac.Rule) error {
	lines := []string{"you may not list and watch all of this; what is missing is"}
	everywhere := false
	for _, rule := range missing {
		lines = append(lines, "  a "+rule.String())
		everywhere = everywhere || rule.Namespace == ""
	}
	if everywhere {
		lines = append(lines, "With --namespace NAME the rights in that namespace are enough.")
	}
	return &app.FailureError{Err: errors.New(strings.Join(lines, "\n"))}
}

// Names returns names for resources of a cluster, for completion; none if they cannot be read.
func Names(ctx context.Context, cluster *rest.Config) []string {
	catalog, err := resources.Read(ctx, cluster)
	if err != nil {
		return nil
	}
	return catalog.Names()
}

// watched says what is watched, and where.
func watched(loaded *config.Config) string {
	names := loaded.ResourceNames()
	text := strings.Join(names, ", ")
	if len(names) > 5 {
		text = fmt.Sprintf("%d resources", len(names))
	}
	if len(loaded.Sources) == 1 && len(loaded.Sources[0].Namespaces.Include) > 0 {
		text += " in " + strings.Join(loaded.Sources[0].Namespaces.Include, ", ")
	}
	return text
}
