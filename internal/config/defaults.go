package config

import "time"

// defaulter is a type whose zero value is not its default.
type defaulter interface{ setDefaults() }

func (c *Config) setDefaults() {
	c.Enrichment.MaxBytes = 32 << 20
	c.Server.Listen = ":8080"
	c.Log = Log{Level: "info", Format: "json"}
	c.Shutdown.Grace = 20 * time.Second
}

func (s *Source) setDefaults() { s.Snapshot = SnapshotInitial }

func (p *Pipeline) setDefaults() {
	p.OnLeave = OnLeaveIgnore
	p.Diff = DiffNone
	p.Format = FormatCloudEvents
	p.Profile = ProfileKubeferry
	p.Backlog = Backlog{MaxBytes: 64 << 20, MaxDiskBytes: 10 << 30}
	p.Retry = Retry{Initial: 100 * time.Millisecond, Max: 30 * time.Second}
	p.RedactSecrets = true
}

func (f *Filter) setDefaults() { f.OnError = OnErrorPass }
