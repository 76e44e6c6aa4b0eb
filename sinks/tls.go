package sinks

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
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

func (t *TLS) validate(path string) []Fault {
	var faults []Fault
	if (t.CertFile == "") != (t.KeyFile == "") {
		faults = append(faults, Fault{Path: path + ".certFile", Message: "certFile and keyFile belong together: set both or neither"})
	}
	if t.InsecureSkipVerify {
		faults = append(faults, Fault{Path: path + ".insecureSkipVerify", Message: "the server's certificate is not verified", Warning: true})
	}
	return faults
}

// Config returns a client configuration that reads its files again whenever they rotate, at each handshake.
// A nil receiver means the system's authorities and no client certificate. serverName is used where the file
// names none; with neither, it is the host that is dialled.
func (t *TLS) Config(serverName string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if t == nil {
		return config, nil
	}
	if t.ServerName != "" {
		config.ServerName = t.ServerName
	}
	if t.CertFile != "" {
		certificate := &keyPair{cert: NewSecretFile(t.CertFile), key: NewSecretFile(t.KeyFile)}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate.load()
		}
	}
	switch {
	case t.InsecureSkipVerify:
		config.InsecureSkipVerify = true //nolint:gosec // the user asked for it, and was warned
	case t.CAFile != "":
		if _, err := loadAuthorities(t.CAFile); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		// crypto/tls takes its RootCAs once; to follow a rotation the verification is done here, as the
		// documentation of tls.Config.VerifyConnection shows.
		config.InsecureSkipVerify = true //nolint:gosec // VerifyConnection verifies
		config.VerifyConnection = func(state tls.ConnectionState) error {
			return verify(state, t.CAFile)
		}
	}
	return config, nil
}

func verify(state tls.ConnectionState, caFile string) error {
	roots, err := loadAuthorities(caFile)
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{DNSName: state.ServerName, Roots: roots, Intermediates: x509.NewCertPool()}
	for _, certificate := range state.PeerCertificates[1:] {
		options.Intermediates.AddCert(certificate)
	}
	_, err = state.PeerCertificates[0].Verify(options)
	return err
}

func loadAuthorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile %s holds no PEM certificate", file)
	}
	return pool, nil
}

// keyPair is a certificate and its key, parsed anew at each handshake: handshakes are rare, and a rotation
// between the two reads then shows as one failed handshake instead of a stale certificate.
type keyPair struct {
	cert, key *SecretFile
}

func (p *keyPair) load() (*tls.Certificate, error) {
	cert, _, err := p.cert.Read()
	if err != nil {
		return nil, fmt.Errorf("read certFile: %w", err)
	}
	key, _, err := p.key.Read()
	if err != nil {
		return nil, fmt.Errorf("read keyFile: %w", err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load client certificate: %w", err)
	}
	return &pair, nil
}
