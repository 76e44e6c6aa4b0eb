package kafkatest

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
)

// Listener names one of a broker's listeners.
type Listener string

// The listeners. All but the first are there only with [Options.Secure]; [Options.Also] adds others.
const (
	Plaintext Listener = "PLAINTEXT"
	TLS       Listener = "TLS"  // a server certificate
	MutualTLS Listener = "MTLS" // and a client certificate
	SASL      Listener = "SASL" // TLS with a login by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
)

// protocolOf are Kafka's names of what the listeners speak.
var protocolOf = map[Listener]string{Plaintext: "PLAINTEXT", TLS: "SSL", MutualTLS: "SSL", SASL: "SASL_SSL"}

// Also is one more listener: like another, but for the address that clients are given.
type Also struct {
	Like      Listener
	Advertise string
}

// Secure is what the listeners with TLS and logins are made of. Certificates and keys are PEM, keys PKCS #8.
type Secure struct {
	Cert, Key      []byte // of the brokers
	ClientCA       []byte // signs the certificates of clients
	User, Password string // may log in by each mechanism
}

// listeners returns the names in use.
func (o *Options) listeners() []Listener {
	listeners := []Listener{Plaintext}
	if o.Secure != nil {
		listeners = append(listeners, TLS, MutualTLS, SASL)
	}
	return append(listeners, slices.Sorted(maps.Keys(o.Also))...)
}

// like returns the listener that another one is like, often itself.
func (o *Options) like(listener Listener) Listener {
	if also, ok := o.Also[listener]; ok {
		return also.Like
	}
	return listener
}

// secure puts the certificates into dir, and adds the listeners of server.properties to p.
func (o *Options) secure(dir string, p map[string]string) error {
	s := o.Secure
	keystore, truststore := filepath.Join(dir, "server.pem"), filepath.Join(dir, "clients.pem")
	if err := os.WriteFile(keystore, append(append([]byte{}, s.Key...), s.Cert...), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(truststore, s.ClientCA, 0o600); err != nil {
		return err
	}
	p["ssl.keystore.type"], p["ssl.keystore.location"] = "PEM", keystore
	p["ssl.truststore.type"], p["ssl.truststore.location"] = "PEM", truststore
	for _, listener := range o.listeners() {
		prefix := "listener.name." + strings.ToLower(string(listener)) + "."
		switch o.like(listener) {
		case MutualTLS:
			p[prefix+"ssl.client.auth"] = "required"
		case SASL:
			s.mechanisms(prefix, p)
		}
	}
	return nil
}

// mechanisms adds the ways to log in to a listener.
func (s *Secure) mechanisms(prefix string, p map[string]string) {
	const module = "org.apache.kafka.common.security."
	p[prefix+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
	p[prefix+"plain.sasl.jaas.config"] = fmt.Sprintf("%splain.PlainLoginModule required user_%s=%q;", module, s.User, s.Password)
	// By default a broker takes tokens that nobody has signed.
	p[prefix+"oauthbearer.sasl.jaas.config"] = module + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`
	for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
		p[prefix+mechanism+".sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
	}
}

// scram are the arguments of StorageTool that store the user.
func (s *Secure) scram() []string {
	var args []string
	for _, mechanism := range []string{"SCRAM-SHA-256", "SCRAM-SHA-512"} {
		args = append(args, "--add-scram", fmt.Sprintf("%s=[name=%s,password=%s]", mechanism, s.User, s.Password))
	}
	return args
}

// Rotate gives the brokers other certificates and another password, which takes a restart.
func (b *Broker) Rotate(secure Secure) {
	b.tb.Helper()
	ctx, cancel := context.WithTimeout(b.tb.Context(), startTimeout)
	defer cancel()
	client := b.client()
	defer client.Close()
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} { // one user's cannot go together
		altered, err := kadm.NewClient(client).AlterUserSCRAMs(ctx, nil, []kadm.UpsertSCRAM{
			{User: secure.User, Mechanism: mechanism, Password: secure.Password, Iterations: 4096},
		})
		if err == nil {
			err = altered.Error()
		}
		if err != nil {
			b.tb.Fatalf("change the password: %v", err)
		}
	}
	for _, n := range b.nodes {
		n := n.(*javaNode)
		n.opts.Secure = &secure
		if err := n.configure(); err != nil {
			b.tb.Fatal(err)
		}
	}
	b.Restart()
}
