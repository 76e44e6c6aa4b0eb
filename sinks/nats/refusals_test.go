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
	before, changed, _ := r.state()
	denied := violation(`Publish to "a"`)
	r.report(denied)
	select {
	case <-changed:
	default:
		t.Error("want the channel closed")
	}
	now, _, last := r.state()
	if r.since(before, "a") == nil || r.since(before, "b") != nil || r.since(now, "a") != nil {
		t.Error("want a refused since before, b not, and a not since")
	}
	if last != denied { //nolint:errorlint // identity
		t.Errorf("got %v", last)
	}
	// When the subject cannot be read, all that are under way are in doubt.
	unread, _, _ := r.state()
	r.report(violation(`Publish to "cut off`))
	if r.since(unread, "never seen") == nil {
		t.Error("want a subject refused when in doubt")
	}

	// When too many are denied to remember: likewise.
	after, _, _ := r.state()
	for i := range maxRefused + 1 {
		r.report(violation(fmt.Sprintf("Publish to \"s%d\"", i)))
	}
	if r.since(after, "never seen") == nil {
		t.Error("want a subject refused when in doubt")
	}
	now, _, _ = r.state()
	if r.since(now, "never seen") != nil {
		t.Error("want a new call not in doubt")
	}

	r.report(violation(`Subscription to "_INBOX.x.*"`))
	now, _, _ = r.state()
	if err := r.since(now, "any"); !errors.Is(err, nats.ErrPermissionViolation) {
		t.Errorf("without acknowledgements: got %v", err)
	}
}
