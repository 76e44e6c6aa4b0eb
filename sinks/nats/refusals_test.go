package nats

import (
	"errors"
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
	before := r.mark()
	changed, _, _ := r.state()
	denied := violation(`Publish to "a"`)
	r.report(denied)
	select {
	case <-changed:
	default:
		t.Error("nobody was told")
	}
	if !r.since(before, "a") || r.since(before, "b") || r.since(r.mark(), "a") {
		t.Error("want a refused since before, b not, and a not since")
	}
	if _, last, inbox := r.state(); last != denied || inbox != nil { //nolint:errorlint // identity
		t.Errorf("got %v, %v", last, inbox)
	}
	r.report(violation(`Subscription to "_INBOX.x.*"`))
	if _, _, inbox := r.state(); !errors.Is(inbox, nats.ErrPermissionViolation) {
		t.Errorf("got %v", inbox)
	}

	// When the subject cannot be read, all that are under way are in doubt.
	unread := r.mark()
	r.report(violation(`Publish to "cut off`))
	if !r.since(unread, "never seen") {
		t.Error("want a subject refused when in doubt")
	}

	// When too many are denied to remember: likewise.
	after := r.mark()
	for i := range maxRefused + 1 {
		r.report(violation(fmt.Sprintf("Publish to \"s%d\"", i)))
	}
	if !r.since(after, "never seen") {
		t.Error("want a subject refused when in doubt")
	}
	if r.since(r.mark(), "never seen") {
		t.Error("want a new call not in doubt")
	}
}
