package kafka

import (
	"encoding/base64"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go/sasl"

	"github.com/kubeferry/kubeferry/sinks"
)

// withoutAWS takes away all credentials of AWS that this machine may have.
func withoutAWS(t *testing.T) {
	t.Helper()
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); strings.HasPrefix(name, "AWS_") {
			t.Setenv(name, "")
		}
	}
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", filepath.Join(t.TempDir(), "none"))
}

func startIAM(t *testing.T, login sasl.Mechanism) (sasl.StateMachine, url.Values) {
	t.Helper()
	session, message, err := login.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	token, ok := strings.CutPrefix(string(message), "n,,\x01auth=Bearer ")
	if !ok || !strings.HasSuffix(token, "\x01\x01") {
		t.Fatalf("got the message %q", message)
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(token, "\x01"))
	if err != nil {
		t.Fatal(err)
	}
	signed, err := url.Parse(string(text))
	if err != nil || signed.Scheme != "https" || signed.Host != "kafka.eu-central-1.amazonaws.com" {
		t.Fatalf("got the token %s, %v", text, err)
	}
	return session, signed.Query()
}

// TestIAM: the token is a signed URL, as Amazon MSK expects it.
func TestIAM(t *testing.T) {
	withoutAWS(t)
	const secret, sessionToken = "s3cr3t/of+aws", "t0k3n/of+a/session=="
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_SESSION_TOKEN", sessionToken)
	login := loginOf(t.Context(), &SASL{Mechanism: mskIAM, Region: "eu-central-1"})
	if login.Name() != "OAUTHBEARER" {
		t.Errorf("got the mechanism %s", login.Name())
	}
	_, query := startIAM(t, login)
	for name, want := range map[string]string{
		"Action":               "^kafka-cluster:Connect$",
		"X-Amz-Algorithm":      "^AWS4-HMAC-SHA256$",
		"X-Amz-Credential":     `^AKIDEXAMPLE/\d{8}/eu-central-1/kafka-cluster/aws4_request$`,
		"X-Amz-Date":           `^\d{8}T\d{6}Z$`,
		"X-Amz-Expires":        "^900$",
		"X-Amz-SignedHeaders":  "^host$",
		"X-Amz-Security-Token": "^" + regexp.QuoteMeta(sessionToken) + "$",
		"X-Amz-Signature":      "^[0-9a-f]{64}$",
	} {
		if got := query.Get(name); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("%s: got %q, want %s", name, got, want)
		}
	}
}

// TestIAMReadsAnew: after a refusal the credentials are read anew, and until there are some the records wait.
func TestIAMReadsAnew(t *testing.T) {
	withoutAWS(t)
	file := filepath.Join(t.TempDir(), "credentials")
	t.Setenv("AWS_SHARED_CREDENTIALS_FILE", file)
	login := loginOf(t.Context(), &SASL{Mechanism: mskIAM, Region: "eu-central-1"})
	if _, _, err := login.Start(t.Context()); sinks.Classify(err).Reason != sinks.ReasonUnauthorized || sinks.Classify(err).Permanent {
		t.Fatalf("without credentials: got %v", err)
	}
	use := func(id string) {
		t.Helper()
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = "+id+"\naws_secret_access_key = s3cr3t\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) sasl.StateMachine {
		t.Helper()
		session, query := startIAM(t, login)
		if got, _, _ := strings.Cut(query.Get("X-Amz-Credential"), "/"); got != want {
			t.Errorf("got the credentials %s, want %s", got, want)
		}
		return session
	}
	use("AKIDFIRST")
	session := check("AKIDFIRST")
	use("AKIDSECOND")
	if done, _, err := session.Next(t.Context(), []byte(`{"status":"invalid_token"}`)); err == nil || done {
		t.Fatalf("a refusal: got %v, %v", done, err)
	}
	check("AKIDSECOND")
}
