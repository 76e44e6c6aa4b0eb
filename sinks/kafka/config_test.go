package kafka

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name string
		yaml string
		want []string // "path: part of the message", with a leading ! for a warning
	}{
		{"smallest", "brokers: [localhost:9092]", nil},
		{"all", `{brokers: ["a:1", b, "[::1]:9092", "fe80::1"], topic: "x-{cluster}", key: uid, requiredAcks: all, compression: zstd,
			sasl: {mechanism: SCRAM-SHA-512, username: u, passwordFile: /p}, tombstones: true, createTopics: true, tls: {}}`, nil},
		{"nothing", "{}", []string{"brokers: at least one"}},
		{"plaintext", "brokers: [localhost, kafka:9092]", []string{"!brokers: records are sent to kafka without TLS"}},
		{"loopback", `brokers: [127.0.0.1, "[::1]:9093", "::1"]`, nil},
		{"brokers", `brokers: ["kafka://a:1", "a:x", "a:0", "", "a b:1", ":9092", "a:1,b:2"]`, []string{
			"brokers[0]: not host:port", "brokers[1]: not host:port", "brokers[2]: not host:port", "brokers[3]: not host:port",
			"brokers[4]: not host:port", "brokers[5]: not host:port", "brokers[6]: not host:port",
		}},
		{"logins in brokers", `brokers: ["sasl://bob:s3cr3t@kafka:9092", "bob:s3cr3t@kafka:9092", "a:1,bob:s3cr3t@b:1"]`, []string{
			"brokers[0]: belongs in sasl", "brokers[1]: belongs in sasl", "brokers[2]: belongs in sasl",
		}},
		{"placeholder", `{brokers: [localhost], topic: "{what}"}`, []string{"topic: unknown placeholder {what}"}},
		{"topic", `{brokers: [localhost], topic: "a/{name}"}`, []string{"topic: holds '/'"}},
		{"no topic", `{brokers: [localhost], topic: ""}`, []string{"topic: needed"}},
		{"dots", `{brokers: [localhost], topic: ".."}`, []string{"topic: no name"}},
		{"long", `{brokers: [localhost], topic: "` + strings.Repeat("x", 250) + `"}`, []string{"topic: longer than 249"}},
		{"sasl", `{brokers: [localhost], tls: {}, sasl: {mechanism: PLAIN}}`, []string{
			"sasl.username: needed", "sasl.password: either",
		}},
		{"no mechanism, a fault of the file", `{brokers: [a], tls: {}, sasl: {username: u, tokenFile: /t}}`, nil},
		{"two passwords", `{brokers: [localhost], tls: {}, sasl: {mechanism: SCRAM-SHA-256, username: u, password: p, passwordFile: /p}}`, []string{"sasl.password: either"}},
		{"bearer token", `{brokers: [a], tls: {}, sasl: {mechanism: OAUTHBEARER, tokenFile: /t, extensions: {logicalCluster: lkc-1}}}`, nil},
		{"client credentials", `{brokers: [a], tls: {}, sasl: {mechanism: OAUTHBEARER, oauth2: {tokenURL: "https://a/token", clientID: c, clientSecretFile: /s}}}`, nil},
		{"no token", `{brokers: [a], tls: {}, sasl: {mechanism: OAUTHBEARER, username: u, extensions: {auth: x, b: "\x01"}}}`, []string{
			"sasl.username: neither username", "sasl.tokenFile: one of", "sasl.extensions.auth: not auth", "sasl.extensions.b: characters",
		}},
		{"Amazon MSK", `{brokers: [a], tls: {}, sasl: {mechanism: AWS_MSK_IAM, region: eu-central-1}}`, nil},
		{"Amazon MSK without a region", `{brokers: [a], tls: {}, sasl: {mechanism: AWS_MSK_IAM, username: u, tokenFile: /t}}`, []string{
			"sasl.mechanism: belong to OAUTHBEARER", "sasl.username: AWS_MSK_IAM has a token", "sasl.region: such as eu-central-1",
		}},
		{"no region", `{brokers: [a], tls: {}, sasl: {mechanism: AWS_MSK_IAM, region: "eu-central-1.example.com/"}}`, []string{"sasl.region: such as eu-central-1"}},
		{"region of another mechanism", `{brokers: [a], tls: {}, sasl: {mechanism: OAUTHBEARER, tokenFile: /t, region: eu-central-1}}`, []string{"sasl.region: AWS_MSK_IAM"}},
		{"token with a password", `{brokers: [a], tls: {}, sasl: {mechanism: PLAIN, username: u, password: p, tokenFile: /t}}`, []string{"sasl.mechanism: belong to OAUTHBEARER"}},
		{"client credentials in plaintext", `{brokers: [a], tls: {}, sasl: {mechanism: OAUTHBEARER, oauth2: {tokenURL: "http://a", clientID: c, clientSecret: s}}}`, []string{
			"sasl.oauth2.tokenURL: begin it with https://",
		}},
		{"no client", `{brokers: [a], tls: {}, sasl: {mechanism: OAUTHBEARER, oauth2: {tokenURL: a, tls: {certFile: c}}}}`, []string{
			"sasl.oauth2.tokenURL: absolute", "sasl.oauth2.clientID: missing", "sasl.oauth2.clientSecretFile: set one", "sasl.oauth2.tls.certFile: belong together",
		}},
		{"new topics", `{brokers: [localhost], createTopics: true, newTopics: {partitions: 12, replicationFactor: 3, cleanupPolicy: compact}}`, nil},
		{"new topics that are not made", `{brokers: [localhost], newTopics: {partitions: -1, replicationFactor: 40000}}`, []string{
			"newTopics: createTopics", "newTopics.partitions: from 1 to 2147483647", "newTopics.replicationFactor: from 1 to 32767",
		}},
		{"compaction without a key", `{brokers: [localhost], createTopics: true, key: none, newTopics: {cleanupPolicy: "compact,delete"}}`, []string{
			"newTopics.cleanupPolicy: set key", "!key: order is lost",
		}},
		{"tombstones without a key", `{brokers: [localhost], key: namespace, tombstones: true}`, []string{"tombstones: names one object"}},
		{"promises given up", `{brokers: [localhost], key: none, requiredAcks: 0, topic: "{type}.{name}"}`, []string{
			"!topic: {type}", "!topic: {name}", "!key: order is lost", "!requiredAcks: lost without notice",
		}},
		{"requiredAcks by number", `{brokers: [localhost], requiredAcks: -1, tls: {}, sasl: {mechanism: SCRAM-SHA-512, username: u, password: p}}`, nil},
		{"the leader only", `{brokers: [localhost], requiredAcks: 1, batch: {maxRecords: 10, maxBytes: 2000000, linger: 0s}}`, []string{"!requiredAcks: leader", "!batch.maxBytes: message.max.bytes"}},
		{"topics made by tenants", `{brokers: [localhost], topic: "{kind}.{namespace}", createTopics: true, maxTopics: 7}`, []string{"!createTopics: until 7 (maxTopics) exist"}},
		{"topics made by their owner", `{brokers: [localhost], topic: "{cluster}.{group}.{version}.{resource}.{kind}", createTopics: true}`, nil},
		{"no topics", `{brokers: [localhost], maxTopics: 0}`, []string{"maxTopics: at least 1"}},
		{"common", `{brokers: [localhost], concurrency: 0}`, []string{"concurrency: at least 1"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := Kind().New()
			if err := yaml.Unmarshal([]byte(test.yaml), config); err != nil {
				t.Fatal(err)
			}
			got := config.Validate()
			if len(got) != len(test.want) {
				t.Fatalf("got %d faults %+v, want %d", len(got), got, len(test.want))
			}
			for i, want := range test.want {
				want, warning := strings.CutPrefix(want, "!")
				path, part, _ := strings.Cut(want, ": ")
				if got[i].Path != path || !strings.Contains(got[i].Message, part) || got[i].Warning != warning {
					t.Errorf("got %+v, want %s", got[i], want)
				}
				if strings.Contains(got[i].Message, "s3cr3t") {
					t.Errorf("a password shows in %q", got[i].Message)
				}
			}
		})
	}
}

// TestCredentialsWithoutTLS has every mechanism.
func TestCredentialsWithoutTLS(t *testing.T) {
	field, _ := reflect.TypeFor[SASL]().FieldByName("Mechanism")
	for mechanism := range strings.SplitSeq(field.Tag.Get("enum"), "|") {
		for more, want := range map[string]string{
			"":                          "sasl: credentials would be sent without TLS, readable by anyone on the way: set tls, or set insecureCredentials: true",
			"insecureCredentials: true": "insecureCredentials: credentials are sent without TLS, readable by anyone on the way",
			"tls: {}":                   "",
		} {
			for _, password := range []string{"username: u, password: p", "username: u, passwordFile: f"} {
				switch mechanism {
				case oauthBearer:
					password = "tokenFile: f"
				case mskIAM:
					password = "region: eu-central-1"
				}
				text := fmt.Sprintf("{brokers: [127.0.0.1], sasl: {mechanism: %s, %s}, %s}", mechanism, password, more)
				config := NewConfig()
				if err := yaml.Unmarshal([]byte(text), config); err != nil {
					t.Fatal(err)
				}
				got := ""
				for _, fault := range config.Validate() {
					got += fault.Path + ": " + fault.Message
					if fault.Warning != (fault.Path == "insecureCredentials") {
						t.Errorf("%s: got %+v", text, fault)
					}
				}
				if got != want {
					t.Errorf("%s: got %q, want %q", text, got, want)
				}
			}
		}
	}
}

func TestLimits(t *testing.T) {
	config := NewConfig()
	want := sinks.Limits{MaxRecords: 500, MaxBytes: 1000 << 10, Linger: 5e6, Concurrency: 4, Timeout: 10e9}
	if got := config.Limits(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Key = keyNone },
		func(c *Config) { c.Key = keyUID },
		func(c *Config) { c.Topic = "{type}" },
	} {
		config := NewConfig()
		if change(config); !config.Limits().OnePerKey {
			t.Errorf("key %s, topic %s: got several records per key", config.Key, config.Topic)
		}
	}
}

func TestClientName(t *testing.T) {
	if got, want := clientName("kubeferry/1.2 (linux; ä)"), "kubeferry-1.2--linux----"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
