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
	for text, subject := range map[string]string{
		`Publish to "k8s.a.b"`:         "k8s.a.b",
		`Publish to "k8s.\"a\\b"`:      `k8s."a\b`,
		`Publish to "k8s.a" and more`:  "k8s.a",
		`Subscription to "_INBOX.x.*"`: "",
		`Publish to "cut off`:          "",
	} {
		if got := violated(violation(text)); got != subject {
			t.Errorf("%s: got %q", text, got)
		}
	}
}

func TestRefusals(t *testing.T) {
	r := newRefusals()
	before, changed, _ := r.state()
	denied := violation(`Publish to "a"`)
	if !r.report(denied) {
		t.Error("want the connection kept")
	}
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
	for n := 2; n <= maxRefused; n++ {
		if useful := r.report(violation(fmt.Sprintf("Publish to \"s%d\"", n))); useful != (n < maxRefused) {
			t.Errorf("useful after %d subjects: %t", n, useful)
		}
	}
	for _, text := range []string{`Publish to "cut off`, `Subscription to "_INBOX.x.*"`} {
		r := newRefusals()
		if useful := r.report(violation(text)); useful || r.last != nil {
			t.Errorf("%s: useful %t, reported %v; want the connection given up, so that calls under way fail", text, useful, r.last)
		}
	}
}
