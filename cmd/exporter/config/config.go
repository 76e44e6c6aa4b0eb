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
	Cluster string `yaml:"cluster" required:"true" doc:"name of the cluster, in every record and id. Never change it"`
	// StateDir is where positions, known sets and logs outlive the process; empty keeps them in memory.
	StateDir  string     `yaml:"stateDir" doc:"directory for what must survive a restart. Without it, a restart begins with a snapshot, and changes that happen meanwhile are lost"`
	Sources   []Source   `yaml:"sources" required:"true" doc:"what to watch. Resources whose objects have no namespace, such as v1/nodes, need a source without the key namespaces"`
	Pipelines []Pipeline `yaml:"pipelines" required:"true" doc:"each pipeline sends the changes of some sources to one sink"`
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
	Resources     []schema.GroupVersionResource `yaml:"resources" required:"true" doc:"what to watch, as apps/v1/deployments or v1/pods. apps/* or *.example.com stands for all resources of a group, later ones too. Other names that kubectl takes, such as deploy or widgets.example.com, are looked up at each start"`
	Exclude       []schema.GroupResource        `yaml:"exclude" doc:"resources that apps/* and the like leave out, as apps/v1/replicasets or replicasets.apps. The version does not matter"`
	Namespaces    SourceNamespaces              `yaml:"namespaces" doc:"the namespaces to watch; not for cluster-scoped resources"`
	LabelSelector string                        `yaml:"labelSelector" doc:"selects objects by labels: app=web,tier!=cache"`
	FieldSelector string                        `yaml:"fieldSelector" doc:"selects objects by fields: type=Warning"`
	Snapshot      delta.Snapshot                `yaml:"snapshot" enum:"initial|never|always" doc:"whether a pipeline gets the objects that exist already: when it first sees the watch (initial), never, or at every start (always)"`
	Check         time.Duration                 `yaml:"check" doc:"how often what exists is compared with what the watches have brought. 0 means never. If there is a difference that lasts, it is sent after a gap record"`
}

// SourceNamespaces selects namespaces by names and by labels: both must fit.
type SourceNamespaces struct {
	delta.Namespaces `yaml:",inline"`
	Selector         string `yaml:"selector" doc:"selects namespaces by their labels, also those that get or lose the labels later: team=shop"`
}

// Takes reports whether the source has a resource: by its name, or by a wildcard that does not leave it out.
func (s *Source) Takes(gvr schema.GroupVersionResource) bool {
	return slices.ContainsFunc(s.Resources, func(r schema.GroupVersionResource) bool {
		return r == gvr || delta.Covers(r, gvr) && !slices.Contains(s.Exclude, gvr.GroupResource())
	})
}

// All reports whether every namespace is selected.
func (n SourceNamespaces) All() bool { return n.Selector == "" && n.Namespaces.All() }

// Pipeline takes deltas from sources through filters and a format to one sink.
type Pipeline struct {
	Name string `yaml:"name" required:"true" doc:"name of the pipeline, in metrics, logs, and ids for repetitions. Never change it. Two installations that have the same cluster name and send to the same topic or stream need different names"`
	// Sources holds the names of the pipeline's sources; the default, all of them, is filled in.
	Sources    []string      `yaml:"sources" doc:"names of sources. The default is all. No resource may come through two of them"`
	Filters    []Filter      `yaml:"filters" doc:"conditions: a change is sent if it passes all of them"`
	Enrich     Enrich        `yaml:"enrich" enum:"involvedObject" doc:"add labels, annotations and owners of the object that an Event is about"`
	OnLeave    shape.OnLeave `yaml:"onLeave" enum:"ignore|deleted" doc:"what is sent when an object no longer passes the filters: nothing (ignore), or a DELETED"`
	Transforms []Transform   `yaml:"transforms" doc:"how to change what is sent, in this order"`
	Diff       shape.Diff    `yaml:"diff" enum:"none|oldObject|jsonPatch|mergePatch" doc:"what a MODIFIED has in addition: the previous version, a JSON Patch (RFC 6902) or a JSON Merge Patch (RFC 7386)"`
	Format     shape.Format  `yaml:"format" enum:"cloudevents|cloudevents-binary|json|raw|otlp|custom" doc:"how records are written"`
	Body       string        `yaml:"body" doc:"for format custom: a CEL expression whose value is the body. It is a map, a list or a text, or null to send nothing"`
	// BodyProgram is Body, compiled.
	BodyProgram       *expr.Program  `yaml:"-"`
	ContentType       string         `yaml:"contentType" doc:"for format custom: the content type of the body. The default is application/json, and text/plain for a text"`
	Encoding          shape.Encoding `yaml:"encoding" enum:"json|protobuf" doc:"for format otlp: how a request is written"`
	Profile           shape.Profile  `yaml:"profile" enum:"kubeferry|knative" doc:"types and attributes of CloudEvents: kubeferry's own, or those of Knative's ApiServerSource"`
	Sink              string         `yaml:"sink" required:"true" doc:"name of a sink"`
	Backlog           Backlog        `yaml:"backlog" doc:"deltas that are not settled"`
	Retry             pipeline.Retry `yaml:"retry" doc:"how failed records are tried again"`
	Rate              *pipeline.Rate `yaml:"rate" doc:"how fast records are sent. What is over waits"`
	DeadLetter        string         `yaml:"deadLetter" doc:"name of a sink for dead letters. By default they are kept in stateDir. Without stateDir, the log has an error with the id"`
	KeepManagedFields bool           `yaml:"keepManagedFields" doc:"whether metadata.managedFields is sent"`
	RedactSecrets     bool           `yaml:"redactSecrets" doc:"whether the values of Secrets are replaced by digests"`
}

// Filter is one condition: exactly one field is set, but for OnError, which goes with Expr.
type Filter struct {
	Types      []delta.Type      `yaml:"types" enum:"ADDED|MODIFIED|DELETED" doc:"types that pass"`
	Namespaces *delta.Namespaces `yaml:"namespaces" doc:"the namespaces whose objects pass"`
	Changed    []ChangedPath     `yaml:"changed" doc:"paths: a MODIFIED passes if one of them has changed. \"*\" stands for everything but resourceVersion, generation and managedFields"`
	Limit      *Limit            `yaml:"limit" doc:"passes the first changes of each key in an interval"`
	Expr       string            `yaml:"expr" doc:"CEL condition: object.metadata.namespace != \"sandbox\""`
	// Written is Expr as it stands in the file: what ${…} stands for may be secret.
	Written string `yaml:"-"`
	// Program is Expr, compiled.
	Program *expr.Program `yaml:"-"`
	OnError shape.OnError `yaml:"onError" enum:"pass|drop|deadLetter" doc:"beside expr: what becomes of a change on which the expression fails"`
}

// ChangedPath is a path, or * for the path without a step.
type ChangedPath struct{ fieldpath.Path }

// String is the text in the file.
func (p ChangedPath) String() string {
	if p.Len() == 0 {
		return "*"
	}
	return p.Path.String()
}

// Limit is a condition on how many changes passed already. The ids of Count changes of each key are remembered.
type Limit struct {
	Per string `yaml:"per" required:"true" doc:"CEL expression of the key: object.involvedObject.name"`
	// Program is Per, compiled.
	Program *expr.Program `yaml:"-"`
	Count   int           `yaml:"count" min:"1" max:"1000" doc:"how many changes of a key pass"`
	Every   time.Duration `yaml:"every" required:"true" min:"1ms" doc:"length of an interval, which begins with the first change of a key"`
}

// Enrich is what a pipeline adds to objects.
type Enrich string

// EnrichInvolvedObject adds metadata of the objects that Events are about. It is the only value of [Enrich] beside none.
const EnrichInvolvedObject Enrich = "involvedObject"

// Backlog limits what a pipeline keeps in memory and on disk.
type Backlog struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" min:"64Ki" doc:"most bytes of what waits in memory. At least 64Ki"`
	// MaxDiskBytes limits the log of a backlog that spills.
	MaxDiskBytes sinks.Bytes `yaml:"maxDiskBytes" min:"1Mi" doc:"most bytes of what waits in stateDir. Beyond it the watches wait"`
	Overflow     Overflow    `yaml:"overflow" enum:"spill|block" doc:"what to do beyond maxBytes: keep the rest on disk (spill), or let the watches wait (block). The default is spill with stateDir, and else block"`
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

// Enrichment is what is kept of the objects that Events are about.
type Enrichment struct {
	Resources []schema.GroupVersionResource `yaml:"resources" doc:"resources that Events are about, as apps/v1/deployments or v1/pods. They are watched in all namespaces. Leave Secrets out: whoever may list them may also read them"`
	MaxBytes  sinks.Bytes                   `yaml:"maxBytes" min:"1Mi" doc:"most bytes of metadata for enrich in memory, for all pipelines together. At least 1Mi. Beyond it, objects that were not used for long are forgotten"`
}

// Previous bounds what is kept in memory of the previous versions.
type Previous struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" min:"1Mi" doc:"most bytes of previous versions in memory, for all pipelines together. At least 1Mi. With a stateDir they are in memory until a commit has written them. Without one, versions beyond it are not known"`
}

// DeadLetters bounds what is kept in the state directory of the records that can never be delivered.
type DeadLetters struct {
	MaxBytes sinks.Bytes `yaml:"maxBytes" min:"16Mi" doc:"most bytes of dead letters in stateDir, for all pipelines together. At least 16Mi. Beyond it the records wait"`
}

// Redaction holds the key of the digests that redacted values become. At most one field is set; with none, the
// program makes a random key: once if there is a state directory, else at every start.
type Redaction struct {
	KeyFile string `yaml:"keyFile" doc:"file with the key of the digests: 16 random bytes or more. By default kubeferry makes a key and keeps it in stateDir. Without stateDir it makes another one at each start, and the digests change"`
	Key     string `yaml:"key" doc:"the key itself. Better write it as ${NAME} or ${file:/path}"`
}

// Server is the HTTP server of metrics and probes.
type Server struct {
	Listen string `yaml:"listen" doc:"address of metrics, probes, /status and the page at /"`
}

// LeaderElection is how replicas decide which of them leads.
type LeaderElection struct {
	LeaseName string `yaml:"leaseName" required:"true" doc:"name of the Lease. Each deployment needs its own. Needs stateDir and replication"`
	// LeaseNamespace is that of the Lease; the default, the Pod's, is filled in when the program starts.
	LeaseNamespace string        `yaml:"leaseNamespace" doc:"namespace of the Lease. The default is the namespace of the Pod. Required outside of a Pod"`
	LeaseDuration  time.Duration `yaml:"leaseDuration" doc:"how long a leader leads after it has last renewed the Lease. Whole seconds, from 3s to 10m"`
	RenewDeadline  time.Duration `yaml:"renewDeadline" doc:"how long a leader tries to renew the Lease. Less than leaseDuration"`
	RetryPeriod    time.Duration `yaml:"retryPeriod" doc:"wait between two renewals of the Lease, or two attempts to take it. At least 100ms, at most a third of leaseDuration, and less than renewDeadline"`
	StaleWait      time.Duration `yaml:"staleWait" doc:"how long a replica with an older copy waits for one with a newer copy, before it leads itself"`
}

// Replication is how a leader serves its standbys.
type Replication struct {
	Listen    string `yaml:"listen" doc:"address at which the leader sends its state to the standbys. Needs leaderElection"`
	Advertise string `yaml:"advertise" doc:"address at which the others reach this replica: \"[${POD_IP}]:8443\". The default is listen, which then must name a host"`
}

// Log is the program's own log.
type Log struct {
	Level  string `yaml:"level" enum:"debug|info|warn|error" doc:"the log has lines of this level and of more severe ones"`
	Format string `yaml:"format" enum:"json|text" doc:"how lines are written"`
}

// PipelineNames returns the names of the pipelines, in the order of the file.
func (c *Config) PipelineNames() (names []string) {
	for _, p := range c.Pipelines {
		names = append(names, p.Name)
	}
	return names
}

// Takers returns the names of the pipelines that take from a source.
func (c *Config) Takers(source string) (names []string) {
	for _, p := range c.Pipelines {
		if slices.Contains(p.Sources, source) {
			names = append(names, p.Name)
		}
	}
	return names
}

// Unresolved returns the names of resources that the API server resolves; they have no version until then.
func (c *Config) Unresolved() (names []string) {
	for _, s := range c.Sources {
		for _, r := range s.Resources {
			if r.Version == "" && r.Resource != "" && !delta.IsWildcard(r) {
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
	Grace time.Duration `yaml:"grace" min:"0s" doc:"how long to go on delivering when kubeferry is stopped"`
}
