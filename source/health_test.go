package source

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// A failure is logged once until the watch goes well; so is the rule that is missing, whatever failed before.
func TestFailuresAreLoggedOnce(t *testing.T) {
	var lines strings.Builder
	h := &health{
		resource: sourcetest.Things, metrics: NewMetrics(prometheus.NewRegistry()).forResource(sourcetest.Things),
		logger: slog.New(slog.NewTextHandler(&lines, nil)), current: WatchStatus{State: StateStarting},
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
