package sinks

// Plaintext is the key of the sinks that may connect without TLS. Embed it with `yaml:",inline"`.
type Plaintext struct {
	InsecureCredentials bool `yaml:"insecureCredentials" doc:"allow credentials without TLS, readable by anyone on the way"`
}

// CheckPlaintext reports credentials that are configured for a connection without TLS: a fault at path, with what to do
// instead, or a warning if the configuration allows it.
func (p *Plaintext) CheckPlaintext(faults *Faults, path, instead string) {
	if p.InsecureCredentials {
		faults.Warn("insecureCredentials", "credentials are sent without TLS, readable by anyone on the way")
		return
	}
	faults.Fail(path, "credentials would be sent without TLS, readable by anyone on the way: %s, or set insecureCredentials: true", instead)
}
