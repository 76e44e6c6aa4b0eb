package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// TestCredentialsRotate replaces each file while the sink is in use: the next request has what it holds then.
func TestCredentialsRotate(t *testing.T) {
	path := write(t, "credential", []byte("first-1234\n"))
	for name, auth := range map[string]*Auth{
		"bearer token": {BearerTokenFile: path},
		"password":     {Basic: &Basic{Username: "ferry", PasswordFile: path}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newReceiver(t, nil)
			rewrite(t, path, []byte("first-1234\n"))
			sink := open(t, func(c *Config) { c.URL, c.Auth, c.InsecureCredentials = r.url(), auth, true })
			for _, secret := range []string{"first-1234", "other-5678", "a longer one, with a blank"} {
				rewrite(t, path, []byte(secret+"\n"))
				if err := sink.Deliver(t.Context(), records(1, "a")); err != nil {
					t.Fatal(err)
				}
				want := "Bearer " + secret
				if auth.Basic != nil {
					want = "Basic " + base64.StdEncoding.EncodeToString([]byte("ferry:"+secret))
				}
				if got := r.requests[len(r.requests)-1].Header.Get("Authorization"); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			// Gone for a moment, as in a rotation: that passes, and no request goes out without it.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
			if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized || len(r.requests) != 3 {
				t.Errorf("without the file: got %v and %d requests", class, len(r.requests))
			}
		})
	}
}

func TestSignature(t *testing.T) {
	r := newReceiver(t, nil)
	oldKey, newKey := []byte("the secret before this one......"), []byte("the secret after that one.......")
	current := write(t, "current", []byte("whsec_"+base64.StdEncoding.EncodeToString(oldKey)+"\n"))
	previous := current + ".previous"
	sink := open(t, func(c *Config) {
		c.URL, c.Compression = r.url(), compressionGzip
		c.Signature = &Signature{SecretFile: current, PreviousSecretFile: previous}
	})
	record := sinktest.NewRecord("a", 1)
	verify := func(keys ...[]byte) {
		t.Helper()
		if err := sink.Deliver(t.Context(), []sinks.Record{record}); err != nil {
			t.Fatal(err)
		}
		header := r.requests[len(r.requests)-1].Header
		var want []string
		for _, key := range keys {
			mac := hmac.New(sha256.New, key)
			fmt.Fprintf(mac, "%s.%s.%s", record.DedupID, header.Get("Webhook-Timestamp"), record.Body)
			want = append(want, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		}
		if got := header.Get("Webhook-Signature"); got != strings.Join(want, " ") {
			t.Errorf("got signature %q, want %q", got, want)
		}
	}
	verify(oldKey)
	// Rotation: the old secret becomes the previous one, and goes at the end.
	rewrite(t, previous, []byte("whsec_"+base64.StdEncoding.EncodeToString(oldKey)))
	rewrite(t, current, []byte(base64.StdEncoding.EncodeToString(newKey)+"\n")) // whsec_ may be missing
	verify(newKey, oldKey)
	if err := os.Remove(previous); err != nil {
		t.Fatal(err)
	}
	verify(newKey)
	// A secret that is missing must not lead to requests without a signature.
	if err := os.Remove(current); err != nil {
		t.Fatal(err)
	}
	class := sinks.Classify(sink.Deliver(t.Context(), []sinks.Record{record}))
	if class == nil || class.Permanent || class.Reason != sinks.ReasonUnauthorized {
		t.Errorf("without the secret: got %v, want a transient error", class)
	}
}

// TestSignatureKnown checks against the example of the Standard Webhooks reference libraries.
func TestSignatureKnown(t *testing.T) {
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := sign([][]byte{key}, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestOpenNeedsItsFiles: CheckFiles, by which a standby finds whether it could lead, fails as Open does.
func TestOpenNeedsItsFiles(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"token":      func(c *Config) { c.Auth = &Auth{BearerTokenFile: "/no/such/file"} },
		"password":   func(c *Config) { c.Auth = &Auth{Basic: &Basic{Username: "u", PasswordFile: "/no/such/file"}} },
		"secret":     func(c *Config) { c.Signature = &Signature{SecretFile: "/no/such/file"} },
		"bad secret": func(c *Config) { c.Signature = &Signature{SecretFile: write(t, "s", []byte("whsec_%%%"))} },
		"bare secret": func(c *Config) {
			c.Signature = &Signature{SecretFile: write(t, "s", []byte("twenty-four characters.."))}
		},
		"authorities": func(c *Config) { c.TLS = &sinks.TLS{CAFile: "/no/such/file"} },
		"certificate": func(c *Config) { c.TLS = &sinks.TLS{CertFile: "/no/such/file", KeyFile: "/no/such/file"} },
	} {
		config := newConfig(func(c *Config) {
			c.URL = "https://example.com"
			change(c)
		})
		if _, err := config.Open(t.Context(), sinks.Env{}); err == nil {
			t.Errorf("%s: got no error", name)
		} else if !strings.HasSuffix(name, " secret") && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: got %v", name, err)
		}
		if err := config.(*Config).CheckFiles(); err == nil {
			t.Errorf("%s: CheckFiles finds no error", name)
		}
	}
}
