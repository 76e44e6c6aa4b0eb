package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// State is what a watch is doing.
type State string

// The states of a watch.
const (
	StateStarting State = "starting" // nothing known yet
	StateMissing  State = "missing"  // the resource does not exist; waiting for its CRD
	StateRefused  State = "refused"  // the configuration does not fit the resource
	StateReading  State = "reading"  // the present state is being read
	StateWatching State = "watching" // changes arrive as they happen
	StateFailing  State = "failing"  // the last attempt failed; trying again
)

// WatchStatus is the state of one watch, for /status and metrics.
type WatchStatus struct {
	Source    string    `json:"source"`
	Resource  string    `json:"resource"`
	Namespace string    `json:"namespace,omitempty"`
	State     State     `json:"state"`
	Since     time.Time `json:"since"`
	// Error is the last one, while the state is missing, refused or failing.
	Error string `json:"error,omitempty"`
	// Known is the number of objects that exist at the position.
	Known int `json:"known"`
	// Position is the resource version of the last change that was handed to the pipelines.
	Position string `json:"position,omitempty"`
	// LastActivity is when the API server last sent anything, bookmarks included.
	LastActivity time.Time `json:"lastActivity,omitzero"`
	// Blocked is set while a pipeline's full backlog stalls this watch, since BlockedSince.
	Blocked      bool      `json:"blocked"`
	BlockedSince time.Time `json:"blockedSince,omitzero"`
	// Ready is set if the watch has read its state, its resource does not exist, or a full backlog stalls it; but not while the resource
	// cannot be read.
	Ready bool `json:"ready"`
	// Awaited is set until the watch has read its state once. It is not set if the resource itself is why that is not possible: whoever
	// owns the resource could stop a rollout.
	Awaited bool `json:"-"`
	// Ending is set once the namespace of the watch is not selected any more, until the watch has caught up and ends.
	Ending bool `json:"ending,omitempty"`
	// Gaps counts the gap records of this run, and LastGaps are the last few, the newest first.
	Gaps     int         `json:"gaps"`
	LastGaps []GapStatus `json:"lastGaps,omitempty"`
	// Restarts is how often the watch was opened again in this run.
	Restarts int `json:"-"`
}

// GapStatus is a gap record that was handed to the pipelines.
type GapStatus struct {
	Time   time.Time `json:"time"`
	From   string    `json:"from"` // resource versions; empty if not known
	To     string    `json:"to"`
	Reason string    `json:"reason"`
}

// maxLastGaps bounds WatchStatus.LastGaps.
const maxLastGaps = 5

// blockedAfter is how long a handler may take before its watch counts as blocked.
const blockedAfter = time.Second

// health is the state of a watch. Its goroutines set it; probes, metrics and /status read it.
type health struct {
	resource schema.GroupVersionResource
	logger   *slog.Logger
	// found is set if a wildcard stands for the resource, and later if the watch began after the others: no rollout waits for one that fails, or
	// for this one at all.
	found, later bool

	mu        sync.Mutex  // guards what follows
	current   WatchStatus // but for Blocked, Ready and Awaited
	forbidden error       // why the watch may not be opened, since its rule was logged; an open one may go on
	excused   bool        // the last attempt failed because of the resource, so that no rollout waits for it
	restored  bool        // the state was read in an earlier run
	complete  bool        // the state was read once in this run
	wasOpen   bool
	handing   time.Time // when the change arrived that the handler has not taken
}

// failed records an error. The first after a success is logged as a warning, with the rule that is missing.
func (h *health) failed(err error) {
	state := StateFailing
	switch {
	case errors.Is(err, ErrMissing):
		state = StateMissing
	case errors.Is(err, ErrScope), isUnfit(err):
		state = StateRefused
	}
	h.mu.Lock()
	repeated := h.current.State == state
	if apierrors.IsForbidden(err) { // the rule is logged even if something else failed before
		repeated = h.forbidden != nil
		h.forbidden = err
	}
	h.set(state, err)
	h.excused = h.found || errors.Is(err, errAway) || isUnfit(err) || apierrors.IsForbidden(err) && h.restored
	h.mu.Unlock()

	switch {
	case repeated:
		h.logger.Debug("the watch still fails", "err", err)
	case state == StateMissing:
		h.logger.Warn("the resource does not exist yet; waiting for it", "err", err)
	case state == StateRefused:
		h.logger.Error("the resource is not watched", "err", err)
	case apierrors.IsForbidden(err):
		h.logForbidden(err)
	default:
		h.logger.Warn("the watch failed; trying again", "err", err)
	}
}

// checked records the verb that the API server does not grant, or an empty string. A watch that fails shows by itself, when
// it is opened, that it has its rights again.
func (h *health) checked(missing string) {
	var err error
	if missing != "" {
		err = apierrors.NewForbidden(h.resource.GroupResource(), "", fmt.Errorf("the right to %s is missing", missing))
	}
	h.mu.Lock()
	before := h.forbidden
	if err != nil || h.current.State != StateFailing {
		h.forbidden = err
	}
	after := h.forbidden
	h.mu.Unlock()
	switch {
	case before == nil && after != nil:
		h.logForbidden(err)
	case before != nil && after == nil:
		h.logger.Info("the rights of the watch are complete again")
	}
}

func (h *health) logForbidden(err error) {
	h.logger.Warn("forbidden to watch; trying again until the rule is granted", "err", err, "rule", h.rule())
}

// rule is the RBAC rule that a forbidden watch lacks.
func (h *health) rule() string {
	kind, in := "ClusterRole", ""
	if namespace := h.current.Namespace; namespace != "" {
		kind, in = "Role", " in namespace "+namespace
	}
	return fmt.Sprintf("%s%s: {apiGroups: [%q], resources: [%q], verbs: [list, watch]}", kind, in, h.resource.Group, h.resource.Resource)
}

// opened records a watch that was opened, to read the state or to resume.
func (h *health) opened(resumed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wasOpen {
		h.current.Restarts++
	}
	h.wasOpen = true
	if h.current.State == StateFailing || h.current.State == StateMissing {
		h.logger.Info("watching again")
	}
	if resumed { // from a position that a complete state led to, in this run or the last
		h.complete = true
		h.set(StateWatching, nil)
	} else {
		h.set(StateReading, nil)
	}
}

// completed records a state that was read to its end.
func (h *health) completed() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.complete = true
	h.set(StateWatching, nil)
}

// set changes the state; h.mu is held.
func (h *health) set(state State, err error) {
	if h.current.State != state {
		h.current.State, h.current.Since = state, time.Now()
	}
	h.current.Error = ""
	if err != nil {
		h.current.Error = err.Error()
	}
	if state != StateFailing {
		h.forbidden = nil
	}
}

// active records what the API server last sent, once the process function is done with it; at the start, where the last run
// ended, and no time.
func (h *health) active(at time.Time, position string, known int) {
	h.mu.Lock()
	h.current.Position, h.current.Known, h.current.LastActivity = position, known, at
	h.mu.Unlock()
}

// gap records a gap record.
func (h *health) gap(g *delta.Gap) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.current.Gaps++
	last := append([]GapStatus{{g.Observed, g.From, g.To, string(g.Reason)}}, h.current.LastGaps...)
	h.current.LastGaps = last[:min(len(last), maxLastGaps)] // a new array: status returned the old one
}

// handOver calls the handler, and records since when, so that status can report a handler that blocks.
func (h *health) handOver(ctx context.Context, at time.Time, call func(context.Context) error) error {
	h.mu.Lock()
	h.handing = at
	h.mu.Unlock()
	err := call(ctx)
	h.mu.Lock()
	h.handing = time.Time{}
	h.mu.Unlock()
	return err
}

// isForbidden reports whether a right of the watch is missing.
func (h *health) isForbidden() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.forbidden != nil
}

// wasRead reports whether the state was read once in this run.
func (h *health) wasRead() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.complete
}

func (h *health) status() WatchStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	status := h.current
	if status.Blocked = !h.handing.IsZero() && time.Since(h.handing) > blockedAfter; status.Blocked {
		status.BlockedSince = h.handing
	}
	if h.forbidden != nil {
		status.State, status.Error = StateFailing, cmp.Or(status.Error, h.forbidden.Error())
	}
	unreadable := status.State == StateFailing || status.State == StateRefused
	read := h.complete || status.State == StateMissing || status.Blocked
	status.Ready, status.Awaited = read && !unreadable, !read && !(unreadable && h.excused) && !h.later
	return status
}
