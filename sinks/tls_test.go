package sinks_test

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// handshake connects a client to a server, and returns the client's error and the name in its certificate.
func handshake(t *testing.T, server *tls.Config, settings *sinks.TLS, host string) (client string, err error) {
	t.Helper()
	config, err := settings.Config(host)
	if err != nil {
		return "", err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	here, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	deadline := time.Now().Add(10 * time.Second)
	name := make(chan string, 1)
	go func() {
		got := ""
		defer func() { name <- got }()
		there, err := listener.Accept()
		if err != nil {
			return
		}
		defer there.Close()
		_, _ = here.SetDeadline(deadline), there.SetDeadline(deadline)
		conn := tls.Server(there, server)
		if conn.Handshake() == nil {
			if certs := conn.ConnectionState().PeerCertificates; len(certs) > 0 {
				got = certs[0].Subject.CommonName
			}
			_, _ = conn.Write([]byte("!"))
		}
	}()
	conn := tls.Client(here, config)
	if err = conn.Handshake(); err == nil {
		_, err = conn.Read(make([]byte, 1)) // a server's refusal of a certificate comes after the handshake
	}
	_ = here.Close()
	return <-name, err
}

func put(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTLSVerifies(t *testing.T) {
	ca, other := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	caFile := put(t, filepath.Join(t.TempDir(), "ca.pem"), ca.PEM())
	private := &sinks.TLS{CAFile: caFile}
	tests := []struct {
		name   string
		server *tls.Config
		tls    *sinks.TLS
		host   string
		ok     bool
	}{
		{"name", ca.ServerConfig("kafka.example"), private, "kafka.example", true},
		{"address", ca.ServerConfig("10.0.0.1"), private, "10.0.0.1", true},
		{"IPv6 address", ca.ServerConfig("fd00::1"), private, "fd00::1", true},
		{"another name", ca.ServerConfig("other.example"), private, "kafka.example", false},
		{"an address, and a certificate for a name", ca.ServerConfig("kafka.example"), private, "10.0.0.1", false},
		{"an address, and a certificate for another", ca.ServerConfig("10.0.0.2"), private, "10.0.0.1", false},
		{"an address, and a certificate for nothing", ca.ServerConfig(), private, "10.0.0.1", false},
		{"IPv6 address, another", ca.ServerConfig("fd00::2"), private, "fd00::1", false},
		{"another authority", other.ServerConfig("kafka.example"), private, "kafka.example", false},
		{"the system's authorities", ca.ServerConfig("kafka.example"), nil, "kafka.example", false},
		{"the system's authorities, address", ca.ServerConfig("10.0.0.1"), &sinks.TLS{}, "10.0.0.1", false},
		{"serverName", ca.ServerConfig("kafka.example"), &sinks.TLS{CAFile: caFile, ServerName: "kafka.example"}, "10.0.0.1", true},
		{"serverName, another", ca.ServerConfig("10.0.0.1"), &sinks.TLS{CAFile: caFile, ServerName: "kafka.example"}, "10.0.0.1", false},
		{"no host", ca.ServerConfig("kafka.example"), private, "", false},
		{"not verified", other.ServerConfig(), &sinks.TLS{InsecureSkipVerify: true}, "10.0.0.1", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if _, err := handshake(t, test.server, test.tls, test.host); (err == nil) != test.ok {
				t.Errorf("got error %v, want success %t", err, test.ok)
			}
		})
	}
}

func TestTLSFilesRotate(t *testing.T) {
	dir := t.TempDir()
	first, second := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	settings := &sinks.TLS{
		CAFile:   put(t, filepath.Join(dir, "ca.pem"), first.PEM()),
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}
	serve := func(ca *sinktest.Authority) *tls.Config {
		config := ca.ServerConfig("10.0.0.1")
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
		return config
	}
	issue := func(ca *sinktest.Authority, name string) {
		cert, key := ca.Issue(name)
		put(t, settings.CertFile, cert)
		put(t, settings.KeyFile, key)
	}
	issue(first, "one")
	if name, err := handshake(t, serve(first), settings, "10.0.0.1"); err != nil || name != "one" {
		t.Errorf("got client %q, error %v", name, err)
	}
	if _, err := handshake(t, serve(second), settings, "10.0.0.1"); err == nil {
		t.Error("a server of another authority was accepted")
	}
	put(t, settings.CAFile, second.PEM())
	issue(second, "two")
	if name, err := handshake(t, serve(second), settings, "10.0.0.1"); err != nil || name != "two" {
		t.Errorf("after the rotation: got client %q, error %v", name, err)
	}
	if _, err := handshake(t, serve(first), settings, "10.0.0.1"); err == nil {
		t.Error("after the rotation: a server of the old authority was accepted")
	}
	put(t, settings.CAFile, []byte("half a fi"))
	if _, err := handshake(t, serve(second), settings, "10.0.0.1"); err == nil {
		t.Error("without a readable authority: the server was accepted")
	}
}

func TestTLSFaults(t *testing.T) {
	common := sinks.Common{
		Batch: sinks.Batch{MaxRecords: 1, MaxBytes: 1024}, Concurrency: 1, Timeout: time.Second,
		TLS: &sinks.TLS{CertFile: "f", InsecureSkipVerify: true},
	}
	faults := common.Validate()
	if len(faults) != 2 || faults[0].Path != "tls.certFile" || faults[0].Warning ||
		faults[1].Path != "tls.insecureSkipVerify" || !faults[1].Warning {
		t.Errorf("got %+v", faults)
	}
	if got := len((&sinks.Common{Timeout: -1, Batch: sinks.Batch{Linger: -1}}).Validate()); got != 5 {
		t.Errorf("nothing valid: got %d faults, want 5", got)
	}
}
