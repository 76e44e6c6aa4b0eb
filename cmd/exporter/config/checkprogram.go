package config

import (
	"net"
	"strconv"
)

// program checks what is about the program as a whole.
func (v *validator) program() {
	if !isListenAddress(v.config.Server.Listen) {
		v.fault("server.listen", "must be host:port or :port, as in :8080 or 127.0.0.1:8080; %s is not", v.shown("server.listen"))
	}
	r := v.config.Redaction
	switch {
	case v.has("redaction.key") && v.has("redaction.keyFile"):
		v.fault("redaction", "has both key and keyFile; set one of them")
	case v.present("redaction.key") && r.Key == "", v.present("redaction.keyFile") && r.KeyFile == "":
		v.fault("redaction", "the key is empty")
	case r.Key != "" && len(r.Key) < 16:
		v.warn("redaction.key", "shorter than 16 bytes: who guesses it can look up the values behind the digests")
	}
}

func isListenAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	_, err = strconv.ParseUint(port, 10, 16)
	return err == nil
}
