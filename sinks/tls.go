package sinks

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
)

// TLS are the keys of a sink's tls section.
type TLS struct {
	CAFile             string `yaml:"caFile" doc:"certificates of the authorities to trust, in PEM. Without it, those of the system are trusted"`
	CertFile           string `yaml:"certFile" doc:"client certificate, in PEM"`
	KeyFile            string `yaml:"keyFile" doc:"the certificate's key, in PEM"`
	ServerName         string `yaml:"serverName" doc:"name in the certificate of the server, if it is not the address"`
	InsecureSkipVerify bool   `yaml:"insecureSkipVerify" doc:"accept any certificate; for tests"`
}

func (t *TLS) validate(faults *Faults, path string) {
	faults.FailIf((t.CertFile == "") != (t.KeyFile == ""), path+".certFile", "certFile and keyFile belong together: set both or neither")
	faults.WarnIf(t.InsecureSkipVerify, path+".insecureSkipVerify", "the server's certificate is not verified")
}

// Config reads the files and returns the client configuration of one connection to host (a name or an address, without
// a port). Make a new one for each connection, so that the files may rotate. An error is a *[FileError].
func (t *TLS) Config(host string) (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         cmp.Or(t.ServerName, host),
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // as configured, with a warning
	}
	if t.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
		if err != nil {
			return nil, &FileError{"tls.certFile", t.CertFile + " with tls.keyFile " + t.KeyFile, err}
		}
		config.Certificates = []tls.Certificate{pair}
	}
	if t.CAFile == "" || t.InsecureSkipVerify {
		return config, nil
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, &FileError{"tls.caFile", t.CAFile, err}
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, &FileError{"tls.caFile", t.CAFile, errors.New("it holds no PEM certificate")}
	}
	return config, nil
}
