package webhook

import (
	"crypto/tls"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// handshake connects a client to a server, and returns the client's error and the name in its certificate.
func handshake(t *testing.T, server, config *tls.Config) (client string, err error) {
	t.Helper()
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

func TestTLSVerifies(t *testing.T) {
	ca, other := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	caFile := write(t, "ca.pem", ca.PEM())
	private := &sinks.TLS{CAFile: caFile}
	tests := []struct {
		name   string
		server *tls.Config
		tls    *sinks.TLS
		host   string
		ok     bool
	}{
		{"name", ca.ServerConfig("hooks.example"), private, "hooks.example", true},
		{"address", ca.ServerConfig("10.0.0.1"), private, "10.0.0.1", true},
		{"IPv6 address", ca.ServerConfig("fd00::1"), private, "fd00::1", true},
		{"another name", ca.ServerConfig("other.example"), private, "hooks.example", false},
		{"an address, and a certificate for a name", ca.ServerConfig("hooks.example"), private, "10.0.0.1", false},
		{"an address, and a certificate for another", ca.ServerConfig("10.0.0.2"), private, "10.0.0.1", false},
		{"an address, and a certificate for nothing", ca.ServerConfig(), private, "10.0.0.1", false},
		{"IPv6 address, another", ca.ServerConfig("fd00::2"), private, "fd00::1", false},
		{"another authority", other.ServerConfig("hooks.example"), private, "hooks.example", false},
		{"the system's authorities", ca.ServerConfig("hooks.example"), &sinks.TLS{}, "hooks.example", false},
		{"the system's authorities, address", ca.ServerConfig("10.0.0.1"), &sinks.TLS{}, "10.0.0.1", false},
		{"serverName", ca.ServerConfig("hooks.example"), &sinks.TLS{CAFile: caFile, ServerName: "hooks.example"}, "10.0.0.1", true},
		{"serverName, another", ca.ServerConfig("10.0.0.1"), &sinks.TLS{CAFile: caFile, ServerName: "hooks.example"}, "10.0.0.1", false},
		{"no host", ca.ServerConfig("hooks.example"), private, "", false},
		{"not verified", other.ServerConfig(), &sinks.TLS{InsecureSkipVerify: true}, "10.0.0.1", true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			config, err := rotating(test.tls, test.host)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := handshake(t, test.server, config); (err == nil) != test.ok {
				t.Errorf("got error %v, want success %t", err, test.ok)
			}
		})
	}
}

func TestTLSFilesRotate(t *testing.T) {
	dir := t.TempDir()
	first, second := sinktest.NewAuthority(t), sinktest.NewAuthority(t)
	settings := &sinks.TLS{
		CAFile:   write(t, "ca.pem", first.PEM()),
		CertFile: filepath.Join(dir, "cert.pem"), KeyFile: filepath.Join(dir, "key.pem"),
	}
	serve := func(ca *sinktest.Authority) *tls.Config {
		config := ca.ServerConfig("10.0.0.1")
		config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, ca.Pool()
		return config
	}
	issue := func(ca *sinktest.Authority, name string) {
		cert, key := ca.Issue(name)
		rewrite(t, settings.CertFile, cert)
		rewrite(t, settings.KeyFile, key)
	}
	issue(first, "one")
	config, err := rotating(settings, "10.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if name, err := handshake(t, serve(first), config); err != nil || name != "one" {
		t.Errorf("got client %q, error %v", name, err)
	}
	if _, err := handshake(t, serve(second), config); err == nil {
		t.Error("a server of another authority was accepted")
	}
	rewrite(t, settings.CAFile, second.PEM())
	issue(second, "two")
	if name, err := handshake(t, serve(second), config); err != nil || name != "two" {
		t.Errorf("after the rotation: got client %q, error %v", name, err)
	}
	if _, err := handshake(t, serve(first), config); err == nil {
		t.Error("after the rotation: a server of the old authority was accepted")
	}
	rewrite(t, settings.CAFile, []byte("half a fi"))
	if _, err := handshake(t, serve(second), config); err == nil {
		t.Error("without a readable authority: the server was accepted")
	}
}
