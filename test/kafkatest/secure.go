package kafkatest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kadm"
)

// Listener names one of a broker's listeners.
type Listener string

// The listeners. All but the first are there only with [Options.Secure].
const (
	Plaintext Listener = "PLAINTEXT"
	TLS       Listener = "TLS"  // a server certificate
	MutualTLS Listener = "MTLS" // and a client certificate
	SASL      Listener = "SASL" // TLS with a login by PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512
)

// Secure is what the listeners with TLS and logins are made of. Certificates and keys are PEM, keys PKCS #8.
type Secure struct {
	Cert, Key      []byte // of the brokers
	ClientCA       []byte // signs the certificates of clients
	User, Password string // may log in by each mechanism
}

// listeners returns the names in use.
func (o *Options) listeners() []Listener {
	if o.Secure == nil {
		return []Listener{Plaintext}
	}
	return []Listener{Plaintext, TLS, MutualTLS, SASL}
}

// write puts the certificates into dir, and adds what server.properties says of the listeners to p.
func (s *Secure) write(dir string, p map[string]string) error {
	keystore, truststore := filepath.Join(dir, "server.pem"), filepath.Join(dir, "clients.pem")
	if err := os.WriteFile(keystore, append(append([]byte{}, s.Key...), s.Cert...), 0o600); err != nil {
		return err
	}
	if err := os.WriteFile(truststore, s.ClientCA, 0o600); err != nil {
		return err
	}
	p["ssl.keystore.type"], p["ssl.keystore.location"] = "PEM", keystore
	p["ssl.truststore.type"], p["ssl.truststore.location"] = "PEM", truststore
	p["listener.name.mtls.ssl.client.auth"] = "required"

	const module = "org.apache.kafka.common.security."
	sasl := "listener.name.sasl."
	p[sasl+"sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
	p[sasl+"plain.sasl.jaas.config"] = fmt.Sprintf("%splain.PlainLoginModule required user_%s=%q;", module, s.User, s.Password)
	for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
		p[sasl+mechanism+".sasl.jaas.config"] = module + "scram.ScramLoginModule required;"
	}
	return nil
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
