package source

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// A failure is logged once until the watch goes well; so is the rule that is missing, whatever failed before.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var lines strings.Builder
	h := &health{
		resource: sourcetest.Things, logger: slog.New(slog.NewTextHandler(&lines, nil)), current: WatchStatus{State: StateStarting},
	}
	forbidden := apierrors.NewForbidden(sourcetest.Things.GroupResource(), "", errors.New("not you"))
	cut := errors.New("unexpected EOF")
	for range 2 {
		for _, err := range []error{cut, cut, forbidden, cut, forbidden} {
			h.failed(err)
		}
		h.opened(true)
	}
	if got := strings.Count(lines.String(), "rule="); got != 2 {
		t.Errorf("the rule is logged %d times, want twice", got)
	}
	if got := strings.Count(lines.String(), "the watch failed"); got != 2 {
		t.Errorf("the failure is logged %d times, want twice", got)
	}
}

// A right that is missing takes the readiness of a watch that goes on, and a right that comes back gives it back; once the
// watch fails, only its next opening does.
func TestRightsDecideReadiness(t *testing.T) {
	var lines strings.Builder
	h := &health{
		resource: sourcetest.Things, logger: slog.New(slog.NewTextHandler(&lines, nil)), current: WatchStatus{State: StateStarting},
	}
	expect := func(ready bool, state State, part string) {
		t.Helper()
		if got := h.status(); got.Ready != ready || got.State != state || !strings.Contains(got.Error, part) {
			t.Errorf("got %+v, want ready %v, %s, %s", got, ready, state, part)
		}
	}
	h.opened(true)
	h.checked("")
	expect(true, StateWatching, "")
	h.checked("watch")
	h.checked("watch")
	expect(false, StateFailing, "the right to watch is missing")
	h.checked("")
	expect(true, StateWatching, "")
	h.checked("list")
	h.failed(apierrors.NewForbidden(sourcetest.Things.GroupResource(), "", errors.New("not you")))
	expect(false, StateFailing, "not you")
	h.checked("")
	h.failed(errors.New("unexpected EOF"))
	expect(false, StateFailing, "unexpected EOF")
	if h.status().Awaited {
		t.Error("/readyz waits for a state that was read")
	}
	h.opened(true)
	expect(true, StateWatching, "")
	if got := strings.Count(lines.String(), "rule="); got != 2 {
		t.Errorf("the rule is logged %d times, want twice", got)
	}
}
