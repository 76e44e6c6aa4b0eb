package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/admin"
	"github.com/kubeferry/kubeferry/source"
)

// standBy runs this process as a standby, and returns once it leads.
func standBy(ctx context.Context, loaded *config.Config, cluster *rest.Config, client *source.Client, health *health, running *lifecycle, fail context.CancelCauseFunc, logger *slog.Logger) (*replica, error) {
	if err := leaseNamespace(loaded.LeaderElection); err != nil {
		return nil, err
	}
	if err := checkFiles(loaded); err != nil {
		return nil, err
	}
	r, err := newReplica(ctx, loaded, cluster, client, fail, logger)
	if err != nil {
		return nil, err
	}
	running.onStop("lease", func(context.Context) { r.handOver() })
	health.replica.Store(r)
	// Whoever comes to the wrong replica is sent to the leader.
	socket := &control{server: admin.NewHTTPServer(http.HandlerFunc(r.refer), logger), logger: logger}
	socket.listen(ctx, loaded.StateDir)
	err = r.lead(ctx)
	closing, cancel := context.WithTimeout(context.Background(), CloseTimeout)
	defer cancel()
	socket.close(closing) // the leader serves its own
	if err != nil {
		return nil, lostError(err)
	}
	return r, nil
}

// checkFiles reports a file of the configuration that only a leader reads: a replica that could not lead must not get ready, or a rollout
// would go on.
func checkFiles(loaded *config.Config) error {
	_, err := FindRedactionKey(loaded.Redaction, loaded.StateDir)
	for _, sink := range usedSinks(loaded) {
		if c, ok := sink.Config.(interface{ CheckFiles() error }); ok {
			if fault := c.CheckFiles(); fault != nil {
				err = errors.Join(err, fmt.Errorf("open sink %q: %w", sink.Name, fault))
			}
		}
	}
	return err
}

// refer refuses commands, and names the leader.
func (r *replica) refer(w http.ResponseWriter, _ *http.Request) {
	holder, _, _ := strings.Cut(cmp.Or(r.lease.Status().Holder, "none"), "_")
	http.Error(w, "this replica is a standby and cannot answer; run the command where the leader runs: "+holder, http.StatusConflict)
}

// podNamespaceFile is where a Pod finds its namespace.
const podNamespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// leaseNamespace fills in the Pod's namespace.
func leaseNamespace(e *config.LeaderElection) error {
	if e.LeaseNamespace != "" {
		return nil
	}
	text, err := os.ReadFile(podNamespaceFile)
	e.LeaseNamespace = cmp.Or(strings.TrimSpace(string(text)), os.Getenv("POD_NAMESPACE"))
	if e.LeaseNamespace == "" {
		return fmt.Errorf("leaderElection.leaseNamespace is required outside of a Pod: %w", err)
	}
	return nil
}

// replicaStatus is what /status shows of this process among the replicas.
type replicaStatus struct {
	// Role is "leader" or "standby".
	Role string `json:"role"`
	// Lease is <namespace>/<name>, Holder the identity of who holds it, and Identity this process's.
	Lease    string `json:"lease"`
	Holder   string `json:"holder,omitempty"`
	Identity string `json:"identity"`
	Term     uint64 `json:"term,omitempty"`
	// Delivering is false while a leader's Lease was not renewed in time.
	Delivering bool `json:"delivering"`
	// StandbysInSync and Standbys are those of a leader.
	Standbys       int `json:"standbys"`
	StandbysInSync int `json:"standbysInSync"`
	// InSync is set for a standby that has the leader's state.
	InSync bool `json:"inSync"`
	// LagSeconds is how old the state of the standby is, or of the newest one.
	LagSeconds float64 `json:"lagSeconds"`
	// Error is why a standby has no connection to the leader, or may not lead.
	Error string `json:"error,omitempty"`
}

func (r *replica) status() *replicaStatus {
	lease := r.lease.Status()
	s := &replicaStatus{
		Role: "standby", Lease: r.lease.Describe(), Holder: lease.Holder, Identity: r.lease.Identity(), Term: lease.Term, LagSeconds: r.lag().Seconds(),
	}
	if lease.Err != nil {
		s.Error = lease.Err.Error()
	}
	if lease.Leading {
		s.Role, s.Delivering = "leader", r.lease.Left() > 0
		if leader := r.leader.Load(); leader != nil {
			found := leader.Standbys()
			s.Standbys, s.StandbysInSync = found.Connected, found.InSync
		}
		return s
	}
	following := r.standby.Status()
	s.InSync = following.InSync
	if err := cmp.Or(following.Err, lease.Waiting); err != nil && s.Error == "" && !following.Connected {
		s.Error = err.Error()
	}
	return s
}

// ready reports whether a standby could take over; a leader that starts is not ready.
func (r *replica) ready() error {
	status := r.status()
	switch {
	case status.Role == "leader":
		return errors.New("taking over")
	case status.InSync:
		return nil
	default:
		return fmt.Errorf("standing by without the leader's state: %s", cmp.Or(status.Error, "it is being copied"))
	}
}

// lag is how old the newest copy of the state is.
func (r *replica) lag() time.Duration {
	if leader := r.leader.Load(); leader != nil {
		return leader.Standbys().Lag
	}
	following := r.standby.Status()
	if following.Current.IsZero() || r.lease.Status().Leading {
		return 0
	}
	return max(0, time.Since(following.Current))
}

// registerReplica registers the metrics of a replica, which are 0 until it has reached the API server: an alert counts leaders by them.
func registerReplica(registry prometheus.Registerer, h *health) {
	of := func(value func(r *replica) float64) func() float64 {
		return func() float64 {
			if r := h.replica.Load(); r != nil {
				return value(r)
			}
			return 0
		}
	}
	gauge := func(name, help string, value func(r *replica) float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "kubeferry_" + name, Help: help}, of(value)))
	}
	gauge("leader", "1 if this replica leads, else 0.", func(r *replica) float64 {
		if status := r.lease.Status(); status.Leading && status.Err == nil && !r.stuck.Load() {
			return 1
		}
		return 0
	})
	gauge("standbys_in_sync", "On the leader, how many standbys are in sync. 0 on a standby.",
		func(r *replica) float64 { return float64(r.status().StandbysInSync) })
	gauge("replication_lag_seconds", "On the leader, the age of the oldest commit that no standby in sync has acknowledged, and 0 while no standby is connected. On a standby, how long ago its copy was equal to the leader's state.",
		func(r *replica) float64 { return r.lag().Seconds() })
	registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "kubeferry_leader_transitions_total", Help: "How often this replica has seen another replica take over.",
	}, of(func(r *replica) float64 { return float64(r.lease.Status().Changes) })))
}
