package sinks

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
)

// TLS are the keys of a sink's tls section.
type TLS struct {
	CAFile             string `yaml:"caFile" doc:"PEM file of the authorities to trust instead of the system's"`
	CertFile           string `yaml:"certFile" doc:"PEM file of the client certificate"`
	KeyFile            string `yaml:"keyFile" doc:"PEM file of the client certificate's key"`
	ServerName         string `yaml:"serverName" doc:"name to expect in the server's certificate"`
	InsecureSkipVerify bool   `yaml:"insecureSkipVerify" doc:"accept any certificate; for tests only"`
}

func (t *TLS) validate(faults *Faults) {
	faults.FailIf((t.CertFile == "") != (t.KeyFile == ""), "tls.certFile", "certFile and keyFile belong together: set both or neither")
	faults.WarnIf(t.InsecureSkipVerify, "tls.insecureSkipVerify", "the server's certificate is not verified")
}

// Config returns the client configuration for a connection to host (a name or an address, without a port). It reads
// its files again at each handshake, so that they may rotate. A nil receiver means the system's authorities and no
// client certificate.
func (t *TLS) Config(host string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: host}
	if t == nil {
		return config, nil
	}
	if t.ServerName != "" {
		config.ServerName = t.ServerName
	}
	if t.CertFile != "" {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return t.ClientCertificate()
		}
	}
	if t.InsecureSkipVerify {
		config.InsecureSkipVerify = true //nolint:gosec // the user asked for it, and was warned
		return config, nil
	}
	if t.CAFile != "" {
		// crypto/tls takes its RootCAs once; to follow a rotation the verification is done here, as the
		// documentation of tls.Config.VerifyConnection shows. The name is ours and not state.ServerName, which
		// is empty for an address, and an empty name is not checked at all.
		name := config.ServerName
		if name == "" {
			return nil, errors.New("tls: no host to verify the certificate for; set tls.serverName")
		}
		config.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return t.verify(state, name)
		}
	}
	return config, nil
}

// CheckFiles reads the files that a handshake reads. Within the handshake, what is wrong with them looks like the
// peer's fault.
func (t *TLS) CheckFiles() error {
	if t == nil {
		return nil
	}
	if _, err := t.Authorities(); err != nil {
		return err
	}
	if t.CertFile == "" {
		return nil
	}
	_, err := t.ClientCertificate()
	return err
}

// Authorities reads caFile; nil stands for the system's. An error is a *[FileError].
func (t *TLS) Authorities() (*x509.CertPool, error) {
	if t == nil || t.CAFile == "" || t.InsecureSkipVerify {
		return nil, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, &FileError{"tls.caFile", t.CAFile, err}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, &FileError{"tls.caFile", t.CAFile, errors.New("it holds no PEM certificate")}
	}
	return pool, nil
}

// ClientCertificate reads certFile and keyFile. Handshakes are rare, so nothing is kept: a rotation between the
// two reads shows as one failed handshake, never as a stale certificate. An error is a *[FileError].
func (t *TLS) ClientCertificate() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, &FileError{"tls.certFile", t.CertFile + " with tls.keyFile " + t.KeyFile, err}
	}
	return &pair, nil
}

func (t *TLS) verify(state tls.ConnectionState, name string) error {
	roots, err := t.Authorities()
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: x509.NewCertPool()}
	for _, certificate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(certificate)
	}
	if _, err = state.PeerCertificates[0].Verify(options); err != nil { // as crypto/tls has it
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}
