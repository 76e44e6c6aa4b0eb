package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// Config is the whole configuration file. What [Load] returns is complete: defaults are filled in and every
// reference points to something.
type Config struct {
	Cluster string `yaml:"cluster" required:"true" doc:"name of the cluster, in every record and id"`
	// StateDir is where positions, known sets and logs outlive the process; empty keeps them in memory.
	StateDir  string     `yaml:"stateDir" doc:"directory of the state, on its own volume; without it a restart begins with a snapshot, and changes meanwhile are lost"`
	Sources   []Source   `yaml:"sources" required:"true" doc:"what is watched. Resources without namespaces need a source of their own, without the key namespaces"`
	Pipelines []Pipeline `yaml:"pipelines" required:"true" doc:"what goes where, and in which form"`
	Sinks     []Sink     `yaml:"sinks" required:"true" doc:"where records are delivered to"`
	// Enrichment is used by the pipelines that enrich.
	Enrichment Enrichment `yaml:"enrichment" doc:"metadata of the objects that Events are about"`
	// Previous bounds the previous versions, for the pipelines that need them.
	Previous Previous `yaml:"previous" doc:"previous versions of objects"`
	// DeadLetters bounds those of the pipelines that name no sink for them.
	DeadLetters DeadLetters `yaml:"deadLetters" doc:"dead letters in stateDir"`
	Redaction   Redaction   `yaml:"redaction" doc:"the key of digests"`
	Server      Server      `yaml:"server" doc:"the HTTP server of metrics and probes"`
	// LeaderElection and Replication are nil for a single replica.
	LeaderElection *LeaderElection `yaml:"leaderElection" doc:"several replicas, of which one leads; needs stateDir and replication"`
	Replication    *Replication    `yaml:"replication" doc:"how the leader sends its state; needs leaderElection"`
	Log            Log             `yaml:"log" doc:"the program's log, on standard error"`
	Shutdown       Shutdown        `yaml:"shutdown" doc:"how the program ends"`
}

// Source is a named set of watches that share scope and selectors.
type Source struct {
	Name          string                        `yaml:"name" required:"true" doc:"name that pipelines use"`
	Resources     []schema.GroupVersionResource `yaml:"resources" required:"true" doc:"apps/v1/deployments or deployments.v1.apps; v1/pods for the core group. Other names that kubectl takes (deploy, widgets.example.com) are looked up at each start"`
	Namespaces    delta.Namespaces              `yaml:"namespaces" doc:"the namespaces to watch; not for cluster-scoped resources"`
	LabelSelector string                        `yaml:"labelSelector" doc:"applied by the API server: app=web,tier!=cache"`
	FieldSelector string                        `yaml:"fieldSelector" doc:"applied by the API server: type=Warning"`
	Snapshot      delta.Snapshot                `yaml:"snapshot" enum:"initial|never|always" doc:"whether a pipeline gets what exists already: when it first sees the watch, never, or at every start"`
}

// Pipeline takes deltas from sources through filters and a format to one sink.
type Pipeline struct {
	Name string `yaml:"name" required:"true" doc:"name in metrics, logs and transport ids"`
	// Sources holds the names of the pipeline's sources; the default, all of them, is filled in.
	Sources    []string      `yaml:"sources" doc:"names of sources; default all"`
	Filters    []Filter      `yaml:"filters" doc:"a delta passes if it passes all"`
	Enrich     Enrich        `yaml:"enrich" enum:"involvedObject" doc:"add metadata of the object that an Event is about, before filters and transforms"`
	OnLeave    shape.OnLeave `yaml:"onLeave" enum:"ignore|deleted" doc:"what is sent of an object that no longer passes: nothing, or a DELETED"`
	Transforms []Transform   `yaml:"transforms" doc:"changes of what is sent, in order"`
	Diff       shape.Diff    `yaml:"diff" enum:"none|oldObject|jsonPatch|mergePatch" doc:"what a MODIFIED also has: the previous version, or a patch from it (RFC 6902, RFC 7386)"`
	Format     shape.Format  `yaml:"format" enum:"cloudevents|cloudevents-binary|json|raw|otlp|custom" doc:"form of the records"`
	Body       string        `yaml:"body" doc:"for format custom: CEL expression of the body, a map, a list or text; null sends nothing"`
	// BodyProgram is Body, compiled.
	BodyProgram       *expr.Program  `yaml:"-"`
	ContentType       string         `yaml:"contentType" doc:"for format custom: content type of the body; default application/json, for text text/plain"`
	Encoding          shape.Encoding `yaml:"encoding" enum:"json|protobuf" doc:"for format otlp: how it is sent"`
	Profile           shape.Profile  `yaml:"profile" enum:"kubeferry|knative" doc:"CloudEvents of kubeferry, or as of Knative's ApiServerSource"`
	Sink              string         `yaml:"sink" required:"true" doc:"name of a sink"`
	Backlog           Backlog        `yaml:"backlog" doc:"deltas that are not settled"`
	Retry             pipeline.Retry `yaml:"retry" doc:"how failed records are tried again"`
	Rate              *pipeline.Rate `yaml:"rate" doc:"bound of what is sent; what is over waits"`
	DeadLetter        string         `yaml:"deadLetter" doc:"sink for dead letters; default stateDir, for kubeferry replay, or without one an error in the log, with the id"`
	KeepManagedFields bool           `yaml:"keepManagedFields" doc:"keep metadata.managedFields"`
	RedactSecrets     bool           `yaml:"redactSecrets" doc:"replace the data of Secrets by keyed digests"`
}

// Filter is one condition: exactly one field is set, but for OnError, which goes with Expr.
type Filter struct {
	Types      []delta.Type      `yaml:"types" enum:"ADDED|MODIFIED|DELETED" doc:"types that pass"`
	Namespaces *delta.Namespaces `yaml:"namespaces" doc:"the namespaces whose objects pass"`
	Changed    []ChangedPath     `yaml:"changed" doc:"paths: a MODIFIED passes if one of them changed; \"*\": all but resourceVersion, generation and managedFields"`
	Limit      *Limit            `yaml:"limit" doc:"passes the first changes of each key in an interval"`
	Expr       string            `yaml:"expr" doc:"CEL condition: object.metadata.namespace != \"sandbox\""`
	// Program is Expr, compiled.
	Program *expr.Program `yaml:"-"`
	OnError shape.OnError `yaml:"onError" enum:"pass|drop|deadLetter" doc:"beside expr: what becomes of a change on which it fails"`
}

// ChangedPath is a path, or * for the path without a step.
type ChangedPath struct{ fieldpath.Path }

// UnmarshalText reads a path.
func (p *ChangedPath) UnmarshalText(text []byte) error {
	if string(text) == "*" {
		return nil
	}
	return p.Path.UnmarshalText(text)
}

// Limit is a condition on how many changes passed already.
type Limit struct {
	Per string `yaml:"per" required:"true" doc:"CEL expression of the key: object.involvedObject.name"`
	// Program is Per, compiled.
	Program *expr.Program `yaml:"-"`
	Count   int           `yaml:"count" doc:"how many changes of a key pass"`
	Every   time.Duration `yaml:"every" required:"true" doc:"interval, which begins with the first change of a key"`
}

// Enrich is what a pipeline adds to objects.
type Enrich string

// EnrichInvolvedObject adds metadata of the objects that Events are about. It is the only value of [Enrich] beside none.
const EnrichInvolvedObject Enrich = "involvedObject"

// Backlog bounds what a pipeline holds in memory.
type Backlog struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"most bytes in memory; at least 64Ki"`
	// MaxDiskBytes bounds the log of a backlog that spills.
	MaxDiskBytes sinks.Bytes `yaml:"maxDiskBytes" doc:"most bytes in stateDir; beyond it the sources wait"`
	Overflow     Overflow    `yaml:"overflow" enum:"spill|block" doc:"beyond maxBytes. spill (default with stateDir): keep on disk; block (default without): the sources wait"`
}

// Overflow is what a full backlog does.
type Overflow string

// The values of [Overflow]. The default, spill with a state directory and block without, is filled in.
const (
	OverflowSpill Overflow = "spill" // keep further deltas on disk
	OverflowBlock Overflow = "block" // the sources wait
)

// Sink is a named destination: the kind of sink, and its section of the file.
type Sink struct {
	Name string
	// Kind is the name of the [sinks.Kind] that Config belongs to.
	Kind   string
	Config sinks.Config
}

// Enrichment bounds what is kept of the objects that Events are about.
type Enrichment struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"most bytes of metadata for enrich in memory, of all pipelines; at least 1Mi. Beyond it, the object not used for longest goes"`
}

// Previous bounds what is kept in memory of the previous versions.
type Previous struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"most bytes of previous versions (for diff, changed, oldObject) in memory, compressed; at least 1Mi. Beyond it they are read from stateDir, or without one unknown"`
}

// DeadLetters bounds what is kept in the state directory of the records that can never be delivered.
type DeadLetters struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"most bytes of dead letters in stateDir, of all pipelines; at least 16Mi. A record that finds no room waits"`
}

// Redaction holds the key of the digests that redacted values become. At most one field is set; with none, the
// program makes a random key: once if there is a state directory, else at every start.
type Redaction struct {
	KeyFile string `yaml:"keyFile" doc:"file with the key of digests, 16 random bytes or more; default: one that is made, and kept in stateDir; without stateDir each start makes one, and digests change"`
	Key     string `yaml:"key" doc:"the key itself, best as ${NAME} or ${file:/path}"`
}

// Server is the HTTP server of metrics and probes.
type Server struct {
	Listen string `yaml:"listen" doc:"address of /metrics, /healthz, /readyz and /status"`
}

// LeaderElection is how replicas decide which of them leads.
type LeaderElection struct {
	LeaseName string `yaml:"leaseName" required:"true" doc:"name of the Lease, one for each deployment; needs stateDir and replication"`
	// LeaseNamespace is that of the Lease; the default, the Pod's, is filled in when the program starts.
	LeaseNamespace string        `yaml:"leaseNamespace" doc:"namespace of the Lease; default the Pod's, required outside of a Pod"`
	LeaseDuration  time.Duration `yaml:"leaseDuration" doc:"how long a leader leads after its last renewal; whole seconds, from 3s to 10m"`
	RenewDeadline  time.Duration `yaml:"renewDeadline" doc:"how long it tries to renew; less than leaseDuration"`
	RetryPeriod    time.Duration `yaml:"retryPeriod" doc:"pause between renewals and attempts; at least 100ms, with a fifth more less than renewDeadline, at most a third of leaseDuration"`
	StaleWait      time.Duration `yaml:"staleWait" doc:"how long a replica with an older copy than the last leader's state waits for a newer one before it leads"`
}

// Replication is how a leader serves its standbys.
type Replication struct {
	Listen    string `yaml:"listen" doc:"address at which the leader serves the others; needs leaderElection"`
	Advertise string `yaml:"advertise" doc:"address at which the others reach this replica: \"[${POD_IP}]:8443\"; default listen, which then must name a host"`
}

// Log is the program's own log.
type Log struct {
	Level  string `yaml:"level" enum:"debug|info|warn|error" doc:"least severe level on standard error"`
	Format string `yaml:"format" enum:"json|text" doc:"form of the lines"`
}

// PipelineNames returns the names of the pipelines, in the order of the file.
func (c *Config) PipelineNames() (names []string) {
	for _, p := range c.Pipelines {
		names = append(names, p.Name)
	}
	return names
}

// Unresolved returns the names of resources that the API server resolves; they have no version until then.
func (c *Config) Unresolved() (names []string) {
	for _, s := range c.Sources {
		for _, r := range s.Resources {
			if r.Version == "" && r.Resource != "" {
				names = append(names, r.Resource)
			}
		}
	}
	return names
}

// ResourceNames returns the resources of all sources, each once, sorted.
func (c *Config) ResourceNames() (names []string) {
	for _, s := range c.Sources {
		for _, r := range s.Resources {
			names = append(names, delta.ResourceName(r))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Override sets what is not empty, as flags of the command line do.
func (l *Log) Override(level, format string) error {
	if levels := []string{"", "debug", "info", "warn", "error"}; !slices.Contains(levels, level) {
		return fmt.Errorf("--log-level: %q is none of %s", level, strings.Join(levels[1:], " "))
	}
	if formats := []string{"", "json", "text"}; !slices.Contains(formats, format) {
		return fmt.Errorf("--log-format: %q is none of %s", format, strings.Join(formats[1:], " "))
	}
	l.Level, l.Format = cmp.Or(level, l.Level), cmp.Or(format, l.Format)
	return nil
}

// Shutdown is how the program ends.
type Shutdown struct {
	Grace time.Duration `yaml:"grace" doc:"longest time to deliver what waits at a stop"`
}
