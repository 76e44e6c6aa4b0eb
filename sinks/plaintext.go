package sinks

import (
	"net"
	"slices"
	"strings"
)

// Plaintext is the key of the sinks that may connect without TLS. Embed it with `yaml:",inline"`.
type Plaintext struct {
	InsecureCredentials bool `yaml:"insecureCredentials" doc:"allow credentials without TLS. Anyone on the way can read them"`
}

// CheckCredentials reports credentials that are configured for a connection without TLS: a fault at path, with what to do
// instead, or a warning if the configuration allows it.
func (p *Plaintext) CheckCredentials(faults *Faults, path, instead string) {
	if p.InsecureCredentials {
		faults.Warn("insecureCredentials", "credentials are sent without TLS, readable by anyone on the way")
		return
	}
	faults.Fail(path, "credentials would be sent without TLS, readable by anyone on the way: %s, or set insecureCredentials: true", instead)
}

// CheckContent warns, at path, of records that are sent without TLS to a host other than this machine.
func CheckContent(faults *Faults, path, instead string, hosts ...string) {
	if i := slices.IndexFunc(hosts, func(host string) bool { return !loopback(host) }); i >= 0 {
		faults.Warn(path, "records are sent to %s without TLS, so anyone on the way can read and change them: %s", hosts[i], instead)
	}
}

func loopback(host string) bool {
	return host == "localhost" || strings.HasSuffix(host, ".localhost") || net.ParseIP(host).IsLoopback()
}
