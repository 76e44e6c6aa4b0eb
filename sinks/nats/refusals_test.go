package nats

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
)

func violation(text string) error {
	return fmt.Errorf("%w: Permissions Violation for %s", nats.ErrPermissionViolation, text)
}

func TestViolated(t *testing.T) {
	for _, test := range []struct {
		text    string
		subject string
		publish bool
	}{
		{`Publish to "k8s.a.b"`, "k8s.a.b", true},
		{`Publish to "k8s.\"a\\b"`, `k8s."a\b`, true},
		{`Publish to "k8s.a" and more`, "k8s.a", true},
		{`Subscription to "_INBOX.x.*"`, "", false},
		{`Publish to "cut off`, "", true},
	} {
		subject, publish := violated(violation(test.text))
		if subject != test.subject || publish != test.publish {
			t.Errorf("%s: got %q, %t", test.text, subject, publish)
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRefusals()
	before, _, changed := r.state()
	denied := violation(`Publish to "a"`)
	if !r.report(denied) {
		t.Error("a refused subject: want the connection kept")
	}
	select {
	case <-changed:
	default:
		t.Error("want the channel closed")
	}
	now, last, _ := r.state()
	if !r.since(before, "a") || r.since(before, "b") || r.since(now, "a") {
		t.Error("want a refused since before, b not, and a not since")
	}
	if last != denied { //nolint:errorlint // identity
		t.Errorf("got %v", last)
	}
	if r.report(violation(`Subscription to "_INBOX.x.*"`)) {
		t.Error("no acknowledgements: want the connection given up")
	}

	// When the subject cannot be read, all that are under way are in doubt.
	unread, _, _ := r.state()
	r.report(violation(`Publish to "cut off`))
	if !r.since(unread, "never seen") {
		t.Error("want a subject refused when in doubt")
	}

	// When too many are denied to remember: likewise.
	after, _, _ := r.state()
	for i := range maxRefused + 1 {
		r.report(violation(fmt.Sprintf("Publish to \"s%d\"", i)))
	}
	if !r.since(after, "never seen") {
		t.Error("want a subject refused when in doubt")
	}
	if seq, _, _ := r.state(); r.since(seq, "never seen") {
		t.Error("want a new call not in doubt")
	}
}
