package sinktest

import (
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

// Harness is how to test one sink.
type Harness struct {
	Kind sinks.Kind
	// New starts a peer for one case, with nothing stored, and stops it by t.Cleanup.
	New func(t *testing.T) *Peer
}

// Peer is a real peer of the sink under test, with the levers that make it fail. Its functions are called from
// the case's goroutine, and fail the t that New was given.
type Peer struct {
	// Config returns a new configuration that delivers to this peer. It should hold credentials, and name them in
	// Secrets.
	Config func() sinks.Config
	// Stored returns what the peer has stored so far, duplicates included, in order of arrival; between records
	// of different keys the order is free.
	Stored func() []Stored

	// Fail makes the peer refuse every record for a reason that may pass, until Mend.
	Fail func()
	// FailRecord makes the peer refuse this one record, for a reason that may pass, until Mend; it may change the
	// record to that end (but not its ID, Key or the start of its body).
	FailRecord func(*sinks.Record)
	// Poison makes the peer refuse this one record for good: it gives the peer the id, or changes the record (makes
	// it too large by appending blanks to its body, for example). Mend does not cure it.
	Poison func(*sinks.Record)
	// Hang makes the peer accept connections and answer nothing, until Mend.
	Hang func()
	// Leave stops the peer, so that connections are refused, until Mend.
	Leave func()
	// Deny makes the peer refuse the sink's credentials, until Mend.
	Deny func()
	// Mend undoes Fail, FailRecord, Hang, Leave and Deny. What was stored stays.
	Mend func()

	// Secrets are the credentials in Config. They must be long enough to be found in a text.
	Secrets []string
	// Cannot gives the reason for each ability that this peer does not have.
	Cannot map[Ability]string
}

// Stored is one record as the peer has it.
type Stored struct {
	DedupID string            // what the transport deduplicates by
	Key     string            // Record.Key, or Record.PartitionKey
	Headers map[string]string // at least Record.Headers, names in lower case
	// Attributes are Record.Attributes and datacontenttype, as a consumer reads them by the binding of the protocol:
	// without the prefix, decoded.
	Attributes map[string]string
	Body       []byte
}

// Ability is something that a peer may be unable to do or to show.
type Ability string

// The abilities. The first six stand for the function of the same name, [Credentials] for Peer.Secrets, the rest
// for the fields of [Stored].
const (
	Fail        Ability = "Fail"
	FailRecord  Ability = "FailRecord"
	Poison      Ability = "Poison"
	Hang        Ability = "Hang"
	Leave       Ability = "Leave"
	Deny        Ability = "Deny"
	Credentials Ability = "Credentials"
	DedupID     Ability = "DedupID"
	Key         Ability = "Key"
	Headers     Ability = "Headers"
	Attributes  Ability = "Attributes"
)

// has reports for each ability that can be seen from outside whether p has it.
func (p *Peer) has() map[Ability]bool {
	return map[Ability]bool{
		Fail: p.Fail != nil, FailRecord: p.FailRecord != nil, Poison: p.Poison != nil, Hang: p.Hang != nil,
		Leave: p.Leave != nil, Deny: p.Deny != nil, Credentials: len(p.Secrets) > 0,
	}
}

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Run("abilities", h.testAbilities)
	t.Run("defaults", h.testDefaults)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			peer := h.New(t)
			for _, ability := range c.needs {
				if reason, ok := peer.Cannot[ability]; ok {
					t.Skipf("not shown here: the peer cannot %s: %s", ability, reason)
				}
			}
			s := &session{t: t, peer: peer, config: peer.Config(), logs: &logBuffer{}, want: map[string]sinks.Record{}}
			c.run(s)
			s.finish()
		})
	}
}

func (h Harness) testAbilities(t *testing.T) {
	peer := h.New(t)
	for ability, has := range peer.has() {
		switch reason, excused := peer.Cannot[ability]; {
		case has && excused:
			t.Errorf("%s is there, and Cannot says that it is not: %s", ability, reason)
		case !has && !excused:
			t.Errorf("%s is missing, and Cannot gives no reason", ability)
		}
	}
	for ability, reason := range peer.Cannot {
		if len(reason) < 10 {
			t.Errorf("Cannot[%s] = %q, want a reason", ability, reason)
		}
		t.Logf("the peer cannot %s: %s", ability, reason)
	}
	for _, secret := range peer.Secrets {
		if len(secret) < 8 {
			t.Errorf("secret %q is too short to be searched for", secret)
		}
	}
	if peer.Mend == nil && (peer.Fail != nil || peer.FailRecord != nil || peer.Hang != nil || peer.Leave != nil || peer.Deny != nil) {
		t.Error("Mend is missing")
	}
}

func (h Harness) testDefaults(t *testing.T) {
	if h.Kind.New() == h.Kind.New() {
		t.Error("Kind.New returned the same pointer twice")
	}
	common := map[string]bool{
		"batch.maxRecords": true, "batch.maxBytes": true, "batch.linger": true, "concurrency": true, "timeout": true,
	}
	for _, fault := range h.Kind.New().Validate() {
		switch {
		case common[fault.Path]:
			t.Errorf("the defaults are at fault: %s: %s", fault.Path, fault.Message)
		case fault.Warning:
			t.Errorf("the defaults give up a promise: %s: %s", fault.Path, fault.Message)
		}
	}
	if l := h.Kind.New().Limits(); l.MaxRecords < 1 || l.MaxBytes < 1 || l.Linger < 0 || l.Concurrency < 1 || l.Timeout <= 0 {
		t.Errorf("the defaults have limits that nothing gets through: %+v", l)
	}
	for _, fault := range h.New(t).Config().Validate() {
		if !fault.Warning {
			t.Errorf("the peer's configuration is at fault: %s: %s", fault.Path, fault.Message)
		}
	}
}
