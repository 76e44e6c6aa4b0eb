// Package kafka delivers records to Apache Kafka through segmentio/kafka-go.
//
// # Why Client.Produce and not Writer
//
// The pipeline batches, retries and keeps the order. kafka.Writer does all three again: it waits on a timer of its
// own, retries ten times in silence, and lets the next batch of a partition go ahead once it gave up, which breaks
// order per object. [kafka.Client.Produce] sends one batch to one partition, once, and returns the result.
//
// # Order and acknowledgement
//
// The records of one call are grouped by topic and partition. Groups are sent side by side, each in order. A Kafka record
// batch is stored as a whole or not at all: one that is refused for the sake of a record is sent again in halves
// ([sinks.Split]). A configuration that may spread one object over several groups (key: none, key: uid, {type} in the
// topic) limits a call to one record per key.
//
// kafka-go has no idempotent producer. A lost answer therefore stores a record twice; consumers recognize it by the header
// kubeferry-dedup-id, which is the same each time.
//
// # Metadata
//
// Only the metadata of the topics in use is read (see transport). kafka-go's Transport reads it again at random moments within [metadataTTL],
// and has no call to do so at once. After an error that may come from old metadata, the sink gives up the pool of connections instead
// ([kafka.Transport.CloseIdleConnections]). The next call opens a new pool, which begins by reading the metadata. Calls under way keep the
// old pool until they end.
package kafka

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/scram"

	"github.com/kubeferry/kubeferry/sinks"
)

// What the key of a message can be.
const (
	keyObject    = "object"
	keyUID       = "uid"
	keyNamespace = "namespace"
	keyNone      = "none"
)

// maxTopic is the longest name that a topic may have (org.apache.kafka.common.internals.Topic.MAX_NAME_LENGTH).
const maxTopic = 249

var (
	scramAlgorithms = map[string]scram.Algorithm{"SCRAM-SHA-256": scram.SHA256, "SCRAM-SHA-512": scram.SHA512}

	// acks has the values that Kafka's own clients take for their acks; -1 is another name for all.
	acks = map[string]kafka.RequiredAcks{"all": kafka.RequireAll, "-1": kafka.RequireAll, "1": kafka.RequireOne, "0": kafka.RequireNone}

	compressions = map[string]kafka.Compression{
		"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4, "zstd": kafka.Zstd,
	}
)

var _ sinks.Config = (*Config)(nil)

// Config is the kafka section of a sink.
type Config struct {
	sinks.Common    `yaml:",inline"`
	sinks.Plaintext `yaml:",inline"`

	Brokers      []string   `yaml:"brokers" doc:"required: some brokers, as host or host:port, through which the cluster is found. The default port is 9092"`
	Topic        string     `yaml:"topic" doc:"topic with placeholders"`
	Key          string     `yaml:"key" enum:"object|uid|namespace|none" doc:"key of a message. With object it is the cluster and the REST path of the object"`
	RequiredAcks string     `yaml:"requiredAcks" enum:"all|1|0|-1" doc:"who must have a record before it counts as delivered: all in-sync replicas (all), the leader of the partition (1), or nobody (0)"`
	Compression  string     `yaml:"compression" enum:"none|gzip|snappy|lz4|zstd" doc:"compression of a batch"`
	SASL         *SASL      `yaml:"sasl" doc:"how to log in"`
	Tombstones   bool       `yaml:"tombstones" doc:"after each DELETED, also send its key without a value, so that a compacted topic forgets it"`
	CreateTopics bool       `yaml:"createTopics" doc:"make topics that do not exist"`
	NewTopics    *NewTopics `yaml:"newTopics" doc:"how createTopics makes a topic"`
	MaxTopics    int        `yaml:"maxTopics" doc:"most topics that createTopics makes. Topics that exist and fit topic count too"`
}

// SASL are the keys of the sasl section.
type SASL struct {
	Mechanism    string            `yaml:"mechanism" required:"true" enum:"PLAIN|SCRAM-SHA-256|SCRAM-SHA-512|OAUTHBEARER|AWS_MSK_IAM" doc:"how to log in"`
	Username     string            `yaml:"username" doc:"user name"`
	Password     string            `yaml:"password" doc:"the password itself. passwordFile is better"`
	PasswordFile string            `yaml:"passwordFile" doc:"file with the password"`
	TokenFile    string            `yaml:"tokenFile" doc:"file with a token for OAUTHBEARER, which is read for each connection"`
	OAuth2       *sinks.OAuth2     `yaml:"oauth2" doc:"where to get a token, for OAUTHBEARER"`
	Extensions   map[string]string `yaml:"extensions" doc:"more values that a broker expects with the token, such as logicalCluster"`
	Region       string            `yaml:"region" doc:"region of the cluster, for AWS_MSK_IAM, such as eu-central-1"`
}

// The mechanisms with tokens. On the wire both are OAUTHBEARER.
const (
	oauthBearer = "OAUTHBEARER"
	mskIAM      = "AWS_MSK_IAM"
)

// NewTopics are the keys of the newTopics section.
type NewTopics struct {
	Partitions        int    `yaml:"partitions" doc:"number of partitions. The default is num.partitions of the brokers"`
	ReplicationFactor int    `yaml:"replicationFactor" doc:"number of copies. The default is default.replication.factor of the brokers"`
	CleanupPolicy     string `yaml:"cleanupPolicy" enum:"delete|compact|compact,delete" doc:"what Kafka removes. The default is log.cleanup.policy of the brokers"`
}

// maxReplicas is the most replicas that the protocol has room for.
const maxReplicas = 1<<15 - 1

func (n *NewTopics) validate(faults *sinks.Faults, c *Config) {
	faults.FailIf(!c.CreateTopics, "newTopics", "has no meaning without createTopics: true")
	faults.FailIf(n.Partitions < 0 || n.Partitions > 1<<31-1, "newTopics.partitions",
		"must be from 1 to %d; leave it out for the brokers' default", 1<<31-1)
	faults.FailIf(n.ReplicationFactor < 0 || n.ReplicationFactor > maxReplicas, "newTopics.replicationFactor",
		"must be from 1 to %d; leave it out for the brokers' default", maxReplicas)
	faults.FailIf(strings.Contains(n.CleanupPolicy, "compact") && c.Key == keyNone, "newTopics.cleanupPolicy", "a compacted topic takes no record without a key: set key")
}

// Kind is the entry of this sink in the registry.
func Kind() sinks.Kind {
	return sinks.Kind{Name: "kafka", New: func() sinks.Config { return NewConfig() }}
}

// NewConfig returns a configuration with its defaults.
func NewConfig() *Config {
	return &Config{
		Common: sinks.Common{
			Batch:       sinks.Batch{MaxRecords: 500, MaxBytes: 1000 << 10, Linger: 5 * time.Millisecond},
			Concurrency: 4,
			Timeout:     10 * time.Second,
		},
		Topic:        "k8s.{cluster}.{group}.{resource}",
		Key:          keyObject,
		RequiredAcks: "all",
		Compression:  "snappy",
		MaxTopics:    1000,
	}
}

// Limits implements [sinks.Config].
func (c *Config) Limits() sinks.Limits {
	limits := c.Common.Limits()
	limits.OnePerKey = c.Key == keyNone || c.Key == keyUID || sinks.NewTemplate(c.Topic).Uses("type")
	return limits
}

// Validate implements [sinks.Config].
func (c *Config) Validate() []sinks.Fault {
	faults := sinks.Faults(c.Common.Validate())
	faults.FailIf(len(c.Brokers) == 0, "brokers", "at least one broker is needed, such as kafka:9092")
	var hosts []string
	for i, broker := range c.Brokers {
		host, err := hostOf(broker)
		if err != nil {
			faults.Fail(fmt.Sprintf("brokers[%d]", i), "%v", err)
			continue
		}
		hosts = append(hosts, host)
	}
	c.validateTopic(&faults)
	faults.FailIf(c.MaxTopics < 1, "maxTopics", "must be at least 1")
	faults.FailIf(c.Tombstones && (c.Key == keyNamespace || c.Key == keyNone), "tombstones",
		"a tombstone needs a key that names one object: object or uid, not %s", c.Key)
	if c.SASL != nil {
		c.SASL.validate(&faults, &c.Plaintext)
	}
	if c.NewTopics != nil {
		c.NewTopics.validate(&faults, c)
	}
	switch {
	case c.TLS != nil:
	case c.SASL != nil:
		c.CheckCredentials(&faults, "sasl", "set tls")
	default:
		sinks.CheckContent(&faults, "brokers", "set tls", hosts...)
	}

	faults.WarnIf(c.Key == keyNone, "key",
		"without a key the records of one object go to different partitions: their order is lost, and compaction is impossible")
	switch acks[c.RequiredAcks] {
	case kafka.RequireNone:
		faults.Warn("requiredAcks", "with 0 a record counts as delivered once it is sent: records can be lost without notice")
	case kafka.RequireOne:
		faults.Warn("requiredAcks", "with 1 a record is lost if its leader fails before a replica has it")
	}
	faults.WarnIf(c.Batch.MaxBytes > maxRecord, "batch.maxBytes",
		"over 1Mi: brokers refuse such batches unless message.max.bytes is raised, and each is then sent in halves")
	return faults
}

func (c *Config) validateTopic(faults *sinks.Faults) {
	topic := sinks.NewTemplate(c.Topic)
	if err := topic.Check(); err != nil {
		faults.Fail("topic", "%v", err)
		return
	}
	if c.Topic == "" {
		faults.Fail("topic", "a topic is needed")
		return
	}
	literal := topic.Literal()
	if i := strings.IndexFunc(literal, func(r rune) bool { return r >= 0x80 || !topicByte(byte(r)) }); i >= 0 {
		faults.Fail("topic", "%q holds %q; a topic is made of letters, digits, '.', '_' and '-'", c.Topic, literal[i])
		return
	}
	faults.FailIf(len(literal) > maxTopic, "topic", "is longer than %d characters", maxTopic)
	faults.FailIf(c.Topic == "." || c.Topic == "..", "topic", "%q is no name for a topic", c.Topic)
	faults.WarnIf(topic.Uses("type"), "topic",
		"{type} sends the records of one object to different topics: their order is lost, and compaction keeps deleted objects")
	faults.WarnIf(topic.Uses("name"), "topic", "{name} makes a topic for each object")
	for _, chosen := range []string{"namespace", "name"} {
		faults.WarnIf(c.CreateTopics && topic.Uses(chosen), "createTopics",
			"{%s} in topic lets those who create objects in the cluster make topics, until %d (maxTopics) exist", chosen, c.MaxTopics)
	}
}

func (s *SASL) validate(faults *sinks.Faults, plain *sinks.Plaintext) {
	if s.Mechanism == "" { // it is missing, or no mechanism, which is a fault already
		return
	}
	faults.FailIf(s.Mechanism != mskIAM && s.Region != "", "sasl.region", "belongs to AWS_MSK_IAM")
	faults.FailIf(s.Mechanism != oauthBearer && (s.TokenFile != "" || s.OAuth2 != nil || s.Extensions != nil), "sasl.mechanism",
		"tokenFile, oauth2 and extensions belong to OAUTHBEARER")
	faults.FailIf(s.token() && (s.Username != "" || s.Password != "" || s.PasswordFile != ""), "sasl.username",
		"%s has a token, and neither username nor password", s.Mechanism)
	switch s.Mechanism {
	case mskIAM:
		faults.FailIf(!regionName.MatchString(s.Region), "sasl.region", "the region of the cluster is needed, such as eu-central-1")
	case oauthBearer:
		faults.FailIf((s.TokenFile == "") == (s.OAuth2 == nil), "sasl.tokenFile", "OAUTHBEARER needs one of tokenFile and oauth2")
		if s.OAuth2 != nil {
			s.OAuth2.Validate(faults, "sasl.oauth2", plain)
		}
		for _, name := range slices.Sorted(maps.Keys(s.Extensions)) {
			value := s.Extensions[name]
			faults.FailIf(!extensionName.MatchString(name) || name == "auth", "sasl.extensions."+name, "a name is made of letters, and not auth")
			faults.FailIf(strings.ContainsFunc(value, func(r rune) bool { return r >= 0x7f || r < ' ' && r != '\t' && r != '\r' && r != '\n' }),
				"sasl.extensions."+name, "the value holds characters that an extension cannot")
		}
	default:
		faults.FailIf(s.Username == "", "sasl.username", "a username is needed")
		faults.FailIf((s.Password == "") == (s.PasswordFile == ""), "sasl.password", "set either password or passwordFile")
	}
}

// token reports whether the login is by a token.
func (s *SASL) token() bool { return s.Mechanism == oauthBearer || s.Mechanism == mskIAM }

// regionName is what the name of an AWS region looks like.
var regionName = regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)+$`)

// extensionName is what the name of an extension may be (RFC 7628 §3.1).
var extensionName = regexp.MustCompile(`^[A-Za-z]+$`)

// hostOf returns the host of an address of the form host or host:port. Its errors quote nothing: what stands before an @ may be a password.
func hostOf(address string) (string, error) {
	if strings.Contains(address, "@") {
		return "", errors.New("holds an @: want host:port; a login belongs in sasl")
	}
	if net.ParseIP(address) != nil || !strings.Contains(address, ":") {
		address = net.JoinHostPort(address, "9092")
	}
	host, port, err := net.SplitHostPort(address)
	n, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || portErr != nil || n == 0 || host == "" || strings.ContainsAny(host, " \t,/") {
		return "", errors.New("is not host:port")
	}
	return host, nil
}

// topicByte reports whether a topic may hold b.
func topicByte(b byte) bool {
	switch {
	case 'a' <= b && b <= 'z', 'A' <= b && b <= 'Z', '0' <= b && b <= '9', b == '.', b == '_', b == '-':
		return true
	default:
		return false
	}
}
