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
	"github.com/kubeferry/kubeferry/sinks"
)

// Config is the whole configuration file. What [Load] returns is complete: defaults are filled in and every
// reference points to something.
type Config struct {
	Cluster string `yaml:"cluster" required:"true" doc:"name of the cluster: stamped on every record and part of every id"`
	// StateDir is where positions, known sets and logs outlive the process; empty keeps them in memory.
	StateDir  string     `yaml:"stateDir" doc:"directory for the checkpoint and the logs, on a volume of its own; without it a restart begins with a snapshot, and changes meanwhile are lost"`
	Sources   []Source   `yaml:"sources" required:"true" doc:"what is watched"`
	Pipelines []Pipeline `yaml:"pipelines" required:"true" doc:"what goes where, and in which form"`
	Sinks     []Sink     `yaml:"sinks" required:"true" doc:"where records are delivered to"`
	// Enrichment is used by the pipelines that enrich.
	Enrichment Enrichment `yaml:"enrichment" doc:"the metadata of the objects that Events are about, for the pipelines with enrich"`
	// Previous bounds the previous versions, for the pipelines that need them.
	Previous Previous `yaml:"previous" doc:"the previous versions, kept for the pipelines with a diff, a filter on changed or an expression with oldObject"`
	// DeadLetters bounds those of the pipelines that name no sink for them.
	DeadLetters DeadLetters `yaml:"deadLetters" doc:"the records that can never be delivered, kept in stateDir for the pipelines without a deadLetter"`
	Redaction   Redaction   `yaml:"redaction" doc:"the key of the digests that redacted values become"`
	Server      Server      `yaml:"server" doc:"the HTTP server of metrics and probes"`
	// LeaderElection and Replication are nil for a single replica.
	LeaderElection *LeaderElection `yaml:"leaderElection" doc:"one of several replicas leads, and the others hold a copy of its state; needs stateDir and replication"`
	Replication    *Replication    `yaml:"replication" doc:"how a leader sends its state to the others; needs leaderElection"`
	Log            Log             `yaml:"log" doc:"the program's own log, on standard error"`
	Shutdown       Shutdown        `yaml:"shutdown" doc:"how the program ends"`
}

// Source is a named set of watches that share scope and selectors.
type Source struct {
	Name          string                        `yaml:"name" required:"true" doc:"name that pipelines refer to"`
	Resources     []schema.GroupVersionResource `yaml:"resources" required:"true" doc:"<group>/<version>/<resource>, or <version>/<resource> for the core group: apps/v1/deployments, v1/pods; deployments.v1.apps is the same. Other names that kubectl takes, such as deploy or widgets.example.com, are looked up at each start"`
	Namespaces    delta.Namespaces              `yaml:"namespaces" doc:"the namespaces to watch; default all. Not for cluster-scoped resources"`
	LabelSelector string                        `yaml:"labelSelector" doc:"label selector that the API server applies: app=web,tier!=cache"`
	FieldSelector string                        `yaml:"fieldSelector" doc:"field selector that the API server applies: type=Warning"`
	Snapshot      delta.Snapshot                `yaml:"snapshot" enum:"initial|never|always" doc:"what a pipeline gets of the objects that exist already. initial: each of them once, the first time the pipeline sees the watch; never: none of them, only later changes; always: each of them at every start"`
}

// Pipeline takes deltas from sources through filters and a format to one sink.
type Pipeline struct {
	Name string `yaml:"name" required:"true" doc:"name in metrics, logs and transport ids"`
	// Sources holds the names of the pipeline's sources; the default, all of them, is filled in.
	Sources           []string         `yaml:"sources" doc:"names of the sources to take deltas from; default all"`
	Filters           []Filter         `yaml:"filters" doc:"a delta passes if it passes each of them"`
	Enrich            Enrich           `yaml:"enrich" enum:"involvedObject" doc:"what is added before filters and transforms see the object. involvedObject: to the involvedObject of Events (regarding in events.k8s.io) the labels, annotations and ownerReferences of the object that it names, or metadataKnown: false; default nothing"`
	OnLeave           pipeline.OnLeave `yaml:"onLeave" enum:"ignore|deleted" doc:"what is sent of an object that passed the filters before and no longer does. ignore: nothing; deleted: a DELETED"`
	Transforms        []Transform      `yaml:"transforms" doc:"changes of what is sent, applied in order"`
	Diff              pipeline.Diff    `yaml:"diff" enum:"none|oldObject|jsonPatch|mergePatch" doc:"what a MODIFIED also carries. oldObject: the previous version; jsonPatch: a JSON Patch (RFC 6902) from it; mergePatch: a JSON Merge Patch (RFC 7386) from it"`
	Format            pipeline.Format  `yaml:"format" enum:"cloudevents|cloudevents-binary|json|raw" doc:"form of the records. cloudevents: structured CloudEvents JSON; cloudevents-binary: the same with the attributes in headers; json: the same data without the envelope; raw: the bare object, the rest in headers"`
	Profile           pipeline.Profile `yaml:"profile" enum:"kubeferry|knative" doc:"whose types, extensions and data CloudEvents have. knative: those of Knative's ApiServerSource, with the bare object as data"`
	Sink              string           `yaml:"sink" required:"true" doc:"name of the sink to deliver to"`
	Backlog           Backlog          `yaml:"backlog" doc:"the deltas that are not settled yet"`
	Retry             pipeline.Retry   `yaml:"retry" doc:"how failed records are tried again"`
	DeadLetter        string           `yaml:"deadLetter" doc:"name of the sink for records that can never be delivered; default: they are kept in stateDir, for exporter replay, or an error log line with the id where there is none"`
	KeepManagedFields bool             `yaml:"keepManagedFields" doc:"keep metadata.managedFields"`
	RedactSecrets     bool             `yaml:"redactSecrets" doc:"replace the data of Secrets by keyed digests"`
}

// Filter is one condition: exactly one field is set, but for OnError, which goes with Expr.
type Filter struct {
	Types      []delta.Type      `yaml:"types" enum:"ADDED|MODIFIED|DELETED" doc:"the types of delta that pass"`
	Namespaces *delta.Namespaces `yaml:"namespaces" doc:"the namespaces whose objects pass"`
	Changed    []fieldpath.Path  `yaml:"changed" doc:"a MODIFIED passes only if one of these paths changed; one whose previous version is not known passes, as do ADDED and DELETED"`
	Expr       string            `yaml:"expr" doc:"CEL expression that is true for what passes, of object, oldObject, type, resource, snapshot and inferred: object.metadata.namespace != \"sandbox\""`
	// Program is Expr, compiled.
	Program *expr.Program    `yaml:"-"`
	OnError pipeline.OnError `yaml:"onError" enum:"pass|drop|deadLetter" doc:"beside expr: what becomes of a change on which the expression fails, because a field is not there for example. pass: it passes; drop: it does not; deadLetter: it goes to the dead letter. One on which it costs too much always goes there"`
}

// Enrich is what a pipeline adds to objects.
type Enrich string

// EnrichInvolvedObject adds metadata of the objects that Events are about. It is the only value of [Enrich] beside none.
const EnrichInvolvedObject Enrich = "involvedObject"

// Backlog bounds what a pipeline holds in memory.
type Backlog struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"the most bytes of deltas held in memory; at least 64Ki"`
	// MaxDiskBytes bounds the log of a backlog that spills.
	MaxDiskBytes sinks.Bytes `yaml:"maxDiskBytes" doc:"the most bytes of deltas kept in stateDir; beyond it the sources wait"`
	Overflow     Overflow    `yaml:"overflow" enum:"spill|block" doc:"what a backlog does that has maxBytes in memory. spill (the default with a stateDir): keep further deltas on disk; block (the default without): its sources wait"`
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
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"the most bytes of metadata held in memory for all pipelines; beyond it, the object not used for longest is dropped; at least 1Mi"`
}

// Previous bounds what is kept in memory of the previous versions.
type Previous struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"the most bytes of previous versions held in memory for all sources, compressed; beyond it they are read from stateDir, and unknown where there is none; at least 1Mi"`
}

// DeadLetters bounds what is kept in the state directory of the records that can never be delivered.
type DeadLetters struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" doc:"the most bytes of dead letters kept in stateDir for all pipelines; a record that finds no room waits; at least 16Mi"`
}

// Redaction holds the key of the digests that redacted values become. At most one field is set; with none, the
// program makes a random key: once if there is a state directory, else at every start.
type Redaction struct {
	KeyFile string `yaml:"keyFile" doc:"file that holds the key"`
	Key     string `yaml:"key" doc:"the key itself, best as ${NAME} or ${file:/path}"`
}

// Server is the HTTP server of metrics and probes.
type Server struct {
	Listen string `yaml:"listen" doc:"address of /metrics, /healthz, /readyz and /status, as host:port or :port"`
}

// LeaderElection is how replicas decide which of them leads.
type LeaderElection struct {
	LeaseName string `yaml:"leaseName" required:"true" doc:"name of the Lease: each deployment has its own"`
	// LeaseNamespace is that of the Lease; the default, the Pod's, is filled in when the program starts.
	LeaseNamespace string        `yaml:"leaseNamespace" doc:"namespace of the Lease; default the Pod's, or the kubeconfig's"`
	LeaseDuration  time.Duration `yaml:"leaseDuration" doc:"how long a leader leads behind its last renewal, in whole seconds, at least 3s; after it another one takes over"`
	RenewDeadline  time.Duration `yaml:"renewDeadline" doc:"how long a leader tries to renew at a stretch; less than leaseDuration"`
	RetryPeriod    time.Duration `yaml:"retryPeriod" doc:"pause between renewals, and between attempts; less than renewDeadline"`
	StaleWait      time.Duration `yaml:"staleWait" doc:"how long a replica whose copy is older than the last leader's state waits for a newer one before it leads"`
}

// Replication is how a leader serves its standbys.
type Replication struct {
	Listen    string `yaml:"listen" doc:"address at which a leader serves the others, as host:port or :port"`
	Advertise string `yaml:"advertise" doc:"address at which the others reach this one: ${POD_IP}:8443; default what it listens on, which must then name a host"`
}

// Log is the program's own log.
type Log struct {
	Level  string `yaml:"level" enum:"debug|info|warn|error" doc:"least severe level that is logged"`
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
	Grace time.Duration `yaml:"grace" doc:"the longest a stopping program drains its backlogs"`
}
