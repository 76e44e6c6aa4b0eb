package config

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// The kinds of sink are passed to the loader, and this package must not import them. These have the keys of the real
// ones, so that config.example.yaml loads, and enough validation to see faults find their lines.
func fakeKinds() []sinks.Kind {
	return []sinks.Kind{
		{Name: "kafka", New: func() sinks.Config {
			return &fakeKafka{Common: fakeCommon(500), Topic: "k8s.{group}.{resource}", Key: "object"}
		}},
		{Name: "nats", New: func() sinks.Config { return &fakeNATS{Common: fakeCommon(500), JetStream: true} }},
		{Name: "webhook", New: func() sinks.Config { return newFakeWebhook() }},
		{Name: "stdout", New: func() sinks.Config { return &fakeStdout{Common: fakeCommon(1000)} }},
		{Name: "file", New: func() sinks.Config { return &fakeFile{Common: fakeCommon(1000), Sync: true} }},
	}
}

func fakeCommon(maxRecords int) sinks.Common {
	return sinks.Common{
		Batch:       sinks.Batch{MaxRecords: maxRecords, MaxBytes: 1 << 20, Linger: 5 * time.Millisecond},
		Concurrency: 4, Timeout: 10 * time.Second,
	}
}

type fakeKafka struct {
	sinks.Common    `yaml:",inline"`
	sinks.Plaintext `yaml:",inline"`
	Brokers         []string `yaml:"brokers"`
	Topic           string   `yaml:"topic"`
	Key             string   `yaml:"key" enum:"object|uid|namespace|none" doc:"key of a message"`
	RequiredAcks    string   `yaml:"requiredAcks"`
	Compression     string   `yaml:"compression"`
	SASL            *struct {
		Mechanism    string            `yaml:"mechanism"`
		Username     string            `yaml:"username"`
		Password     string            `yaml:"password"`
		PasswordFile string            `yaml:"passwordFile"`
		TokenFile    string            `yaml:"tokenFile"`
		OAuth2       *sinks.OAuth2     `yaml:"oauth2"`
		Extensions   map[string]string `yaml:"extensions"`
		Region       string            `yaml:"region"`
	} `yaml:"sasl"`
	Tombstones   bool `yaml:"tombstones"`
	CreateTopics bool `yaml:"createTopics"`
	MaxTopics    int  `yaml:"maxTopics"`
	NewTopics    *struct {
		Partitions        int    `yaml:"partitions"`
		ReplicationFactor int    `yaml:"replicationFactor"`
		CleanupPolicy     string `yaml:"cleanupPolicy"`
	} `yaml:"newTopics"`
}

func (c *fakeKafka) Validate() []sinks.Fault {
	faults := c.Common.Validate()
	if len(c.Brokers) == 0 {
		faults = append(faults, sinks.Fault{Path: "brokers", Message: "missing"})
	}
	for i, broker := range c.Brokers {
		if slices.Contains([]byte(broker), '/') {
			faults = append(faults, sinks.Fault{Path: fmt.Sprintf("brokers[%d]", i), Message: fmt.Sprintf("%q is not host:port", broker)})
		}
	}
	if err := sinks.NewTemplate(c.Topic).Check(); err != nil {
		faults = append(faults, sinks.Fault{Path: "topic", Message: err.Error()})
	}
	if c.Key == "none" {
		faults = append(faults, sinks.Fault{Path: "key", Message: "order is lost", Warning: true})
	}
	return faults
}

type fakeNATS struct {
	sinks.Common    `yaml:",inline"`
	sinks.Plaintext `yaml:",inline"`
	URLs            []string `yaml:"urls"`
	Subject         string   `yaml:"subject"`
	JetStream       bool     `yaml:"jetstream"`
	Stream          *struct {
		Name       string        `yaml:"name"`
		Create     bool          `yaml:"create"`
		Subjects   []string      `yaml:"subjects"`
		MaxAge     time.Duration `yaml:"maxAge"`
		MaxBytes   sinks.Bytes   `yaml:"maxBytes"`
		Discard    string        `yaml:"discard"`
		Replicas   int           `yaml:"replicas"`
		Duplicates time.Duration `yaml:"duplicates"`
	} `yaml:"stream"`
	CredsFile    string `yaml:"credsFile"`
	NkeySeedFile string `yaml:"nkeySeedFile"`
	Username     string `yaml:"username"`
	Password     string `yaml:"password"`
	PasswordFile string `yaml:"passwordFile"`
	TokenFile    string `yaml:"tokenFile"`
	InboxPrefix  string `yaml:"inboxPrefix"`
	Domain       string `yaml:"domain"`
	TLSFirst     bool   `yaml:"tlsFirst"`
}

type fakeWebhook struct {
	Batch struct {
		sinks.Batch `yaml:",inline"`
		Framing     string `yaml:"framing"`
	} `yaml:"batch"`
	Concurrency     int           `yaml:"concurrency"`
	Timeout         time.Duration `yaml:"timeout"`
	TLS             *sinks.TLS    `yaml:"tls"`
	sinks.Plaintext `yaml:",inline"`
	URL             string            `yaml:"url"`
	Method          string            `yaml:"method"`
	Headers         map[string]string `yaml:"headers"`
	Auth            *struct {
		BearerTokenFile string        `yaml:"bearerTokenFile"`
		OAuth2          *sinks.OAuth2 `yaml:"oauth2"`
		Basic           *struct {
			Username     string `yaml:"username"`
			Password     string `yaml:"password"`
			PasswordFile string `yaml:"passwordFile"`
		} `yaml:"basic"`
	} `yaml:"auth"`
	Signature *struct {
		SecretFile         string `yaml:"secretFile"`
		PreviousSecretFile string `yaml:"previousSecretFile"`
	} `yaml:"signature"`
	Compression       string `yaml:"compression"`
	PermanentStatuses []int  `yaml:"permanentStatuses"`
	Success           string `yaml:"success"`
	Permanent         string `yaml:"permanent"`
}

func newFakeWebhook() *fakeWebhook {
	common := fakeCommon(1)
	c := &fakeWebhook{Concurrency: common.Concurrency, Timeout: common.Timeout, Method: "POST"}
	c.Batch.Batch = common.Batch
	return c
}

// Validate repeats values in its messages, which real sinks avoid where a value may be a credential.
func (c *fakeWebhook) Validate() []sinks.Fault {
	if c.URL == "" {
		return []sinks.Fault{{Path: "url", Message: "missing"}}
	}
	if !strings.HasPrefix(c.URL, "http") {
		return []sinks.Fault{{Path: "url", Message: fmt.Sprintf("parse %q: %s is wrong in %q", c.URL, c.URL, c.URL[:len(c.URL)/2])}}
	}
	return nil
}

func (c *fakeWebhook) Limits() sinks.Limits {
	common := sinks.Common{Batch: c.Batch.Batch, Concurrency: c.Concurrency, Timeout: c.Timeout}
	limits := common.Limits()
	limits.LosesHeaders = limits.MaxRecords > 1
	return limits
}

type fakeStdout struct {
	sinks.Common `yaml:",inline"`
}

type fakeFile struct {
	sinks.Common `yaml:",inline"`
	Path         string `yaml:"path"`
	Sync         bool   `yaml:"sync"`
}

func (*fakeKafka) Open(context.Context, sinks.Env) (sinks.Sink, error) {
	return nil, errors.New("fake")
}

func (*fakeNATS) Open(context.Context, sinks.Env) (sinks.Sink, error) { return nil, errors.New("fake") }

func (*fakeWebhook) Open(context.Context, sinks.Env) (sinks.Sink, error) {
	return nil, errors.New("fake")
}

func (*fakeStdout) Open(context.Context, sinks.Env) (sinks.Sink, error) {
	return nil, errors.New("fake")
}

func (*fakeFile) Open(context.Context, sinks.Env) (sinks.Sink, error) { return nil, errors.New("fake") }

// fakeEnv is the environment of a test.
func fakeEnv(variables map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		value, ok := variables[name]
		return value, ok
	}
}

func testOptions(variables map[string]string) Options {
	return Options{Kinds: fakeKinds(), Getenv: fakeEnv(variables)}
}

// parse reads text that must be right.
func parse(t *testing.T, text string, variables map[string]string) (*Config, Faults) {
	t.Helper()
	config, warnings, err := Parse([]byte(text), "config.yaml", testOptions(variables))
	if err != nil {
		t.Fatalf("Parse: %v\nin:\n%s", err, text)
	}
	return config, warnings
}

// faultsOf reads text that must be wrong.
func faultsOf(t *testing.T, text string, variables map[string]string) Faults {
	t.Helper()
	config, _, err := Parse([]byte(text), "config.yaml", testOptions(variables))
	var faults Faults
	if !errors.As(err, &faults) || len(faults) == 0 || config != nil {
		t.Fatalf("Parse = %v, %v, want nil and faults; in:\n%s", config, err, text)
	}
	return faults
}

// minimal is the shortest file.
const minimal = `cluster: c
sources: [{name: s, resources: [v1/pods]}]
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`
