package webhook

import (
	"encoding/base64"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

const (
	testToken    = "tok/en+Zm9vYmFy-9c1d3f&more"
	testPassword = "p#ss w\"rd/§8f3e"
	testKey      = "0123456789abcdef0123456789abcdef"
)

func newConfig(change func(*Config)) sinks.Config {
	c := NewConfig()
	change(c)
	return c
}

func TestSuite(t *testing.T) {
	modes := map[string]func(t *testing.T) *sinktest.Peer{
		"one record per request": func(t *testing.T) *sinktest.Peer {
			r := newReceiver(t, nil)
			token := write(t, "token", []byte(testToken+"\n"))
			coded := "whsec_" + base64.StdEncoding.EncodeToString([]byte(testKey))
			secret := write(t, "secret", []byte(coded))
			return r.peer(func() sinks.Config {
				return newConfig(func(c *Config) {
					c.URL = r.url() + "?key=query-secret-1234"
					c.Headers = map[string]string{"X-Api-Key": "header-secret-1234"}
					c.Auth, c.InsecureCredentials = &Auth{BearerTokenFile: token}, true
					c.Signature = &Signature{SecretFile: secret}
				})
			}, testToken, coded, testKey, "query-secret-1234", "header-secret-1234")
		},
		"arrays, gzip, basic": func(t *testing.T) *sinktest.Peer {
			r := newReceiver(t, nil)
			peer := r.peer(func() sinks.Config {
				return newConfig(func(c *Config) {
					c.URL = r.url()
					c.Batch.MaxRecords = 100
					c.Compression = compressionGzip
					c.Auth, c.InsecureCredentials = &Auth{Basic: &Basic{Username: "ferry", Password: testPassword}}, true
				})
			}, testPassword)
			peer.Cannot[sinktest.DedupID] = "an array has one webhook-id for all its records"
			peer.Cannot[sinktest.Headers] = "an array has one header section for all its records"
			return peer
		},
		"HTTP/2, private CA": func(t *testing.T) *sinktest.Peer {
			ca := sinktest.NewAuthority(t)
			r := newReceiver(t, ca.ServerConfig("127.0.0.1"))
			caFile := write(t, "ca.pem", ca.PEM())
			password := write(t, "password", []byte(testPassword))
			return r.peer(func() sinks.Config {
				return newConfig(func(c *Config) {
					c.URL = r.url()
					c.TLS = &sinks.TLS{CAFile: caFile}
					c.Auth = &Auth{Basic: &Basic{Username: "ferry", PasswordFile: password}}
				})
			}, testPassword)
		},
	}
	for name, start := range modes {
		t.Run(name, func(t *testing.T) {
			sinktest.Run(t, sinktest.Harness{Kind: Kind(), New: start})
		})
	}
}
