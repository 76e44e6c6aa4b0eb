package config

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// defaulter is a type whose zero value is not its default.
type defaulter interface{ setDefaults() }

func (c *Config) setDefaults() {
	c.Enrichment = Enrichment{
		Resources: []schema.GroupVersionResource{ // about which the controllers of Kubernetes write Events
			{Version: "v1", Resource: "nodes"},
			{Version: "v1", Resource: "persistentvolumeclaims"},
			{Version: "v1", Resource: "pods"},
			{Version: "v1", Resource: "services"},
			{Group: "apps", Version: "v1", Resource: "daemonsets"},
			{Group: "apps", Version: "v1", Resource: "deployments"},
			{Group: "apps", Version: "v1", Resource: "replicasets"},
			{Group: "apps", Version: "v1", Resource: "statefulsets"},
			{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"},
			{Group: "batch", Version: "v1", Resource: "cronjobs"},
			{Group: "batch", Version: "v1", Resource: "jobs"},
			{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
		},
		MaxBytes: 32 << 20,
	}
	c.Previous.MaxBytes = 64 << 20
	c.DeadLetters.MaxBytes = 1 << 30
	c.Server.Listen = ":8080"
	c.Log = Log{Level: "info", Format: "json"}
	c.Shutdown.Grace = 20 * time.Second
}

func (s *Source) setDefaults() { s.Snapshot, s.Check = delta.SnapshotInitial, 24*time.Hour }

func (p *Pipeline) setDefaults() {
	p.OnLeave = shape.OnLeaveIgnore
	p.Diff = shape.DiffNone
	p.Format = shape.FormatCloudEvents
	p.Encoding = shape.EncodingJSON
	p.Profile = shape.ProfileKubeferry
	p.Backlog = Backlog{MaxBytes: 64 << 20, MaxDiskBytes: 10 << 30}
	p.Retry = pipeline.Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
	p.RedactSecrets = true
}

func (e *LeaderElection) setDefaults() {
	e.LeaseDuration, e.RenewDeadline, e.RetryPeriod, e.StaleWait = 10*time.Second, 7*time.Second, time.Second, 30*time.Second
}

func (r *Replication) setDefaults() { r.Listen = ":8443" }

func (l *Limit) setDefaults() { l.Count = 1 }

func (f *Filter) setDefaults() { f.OnError = shape.OnErrorPass }
