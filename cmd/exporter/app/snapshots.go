package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source"
)

// snapshotsPath begins snapshots with POST, and reads how far they are with GET. The parameters are pipeline, source and
// resource; the last two may be empty.
const snapshotsPath = "/snapshots"

// snapshots serves requests for snapshots on demand.
type snapshots struct {
	sources []*source.Source
	// resolve finds a resource by a name that kubectl takes.
	resolve func(ctx context.Context, name string) (schema.GroupVersionResource, error)
	mu      sync.Mutex // one begins snapshots at a time: it checks all watches before it begins with one
}

// answer answers a request with the status of each snapshot.
func (s *snapshots) answer(r *http.Request) (any, error) {
	query := r.URL.Query()
	pipeline, from, resource := query.Get("pipeline"), query.Get("source"), query.Get("resource")
	if resource != "" {
		found, err := s.resolve(r.Context(), resource)
		if err != nil {
			return nil, err
		}
		resource = delta.ResourceName(found)
	}
	var chosen []*source.Source
	for _, one := range s.sources {
		if from == "" || from == one.Name() {
			chosen = append(chosen, one)
		}
	}
	if r.Method == http.MethodPost {
		if err := s.request(chosen, pipeline, resource); err != nil {
			return nil, fmt.Errorf("%w%s", err, describe(chosen, pipeline, resource))
		}
	}
	return statuses(chosen, pipeline, resource), nil
}

func (s *snapshots) request(chosen []*source.Source, pipeline, resource string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, try := range []bool{true, false} { // all of them, or none
		watches := 0
		for _, one := range chosen {
			n, err := one.RequestSnapshot(pipeline, resource, try)
			if err != nil {
				return err
			}
			watches += n
		}
		if watches == 0 {
			return fmt.Errorf("pipeline %q of the running kubeferry takes no such resource", pipeline)
		}
	}
	return nil
}

func statuses(chosen []*source.Source, pipeline, resource string) []source.SnapshotStatus {
	all := []source.SnapshotStatus{}
	for _, one := range chosen {
		all = append(all, one.Snapshots(pipeline, resource)...)
	}
	return all
}

// describe is how far the snapshots are that are under way.
func describe(chosen []*source.Source, pipeline, resource string) (text string) {
	for _, s := range statuses(chosen, pipeline, resource) {
		if !s.Done {
			text += fmt.Sprintf("; %s of source %q: %s", s.Resource, s.Source, s.Progress())
		}
	}
	return text
}

// SnapshotRequest is what a snapshot on demand is of.
type SnapshotRequest struct {
	StateDir, Pipeline string
	Source, Resource   string // empty for all
}

// SnapshotStatus is how far one snapshot is.
type SnapshotStatus = source.SnapshotStatus

// Snapshot requests a snapshot of the kubeferry that runs on a state directory. It calls progress every now and then until all records
// are delivered. It returns an error if one of them became a dead letter, or the resource is gone.
func Snapshot(ctx context.Context, request SnapshotRequest, progress func([]SnapshotStatus)) error {
	client := newSocketClient(request.StateDir)
	defer client.close()
	query := url.Values{"pipeline": {request.Pipeline}, "source": {request.Source}, "resource": {request.Resource}}
	var found []source.SnapshotStatus
	for method := http.MethodPost; ; method = http.MethodGet {
		err := client.request(ctx, method, snapshotsPath, query, nil, &found)
		switch {
		case err == nil:
		case method == http.MethodPost && errors.As(err, new(*net.OpError)):
			return fmt.Errorf("no kubeferry runs on %s: %w", request.StateDir, err)
		case method == http.MethodGet && ctx.Err() == nil:
			return fmt.Errorf("kubeferry ended: the snapshot begins anew when it runs again: %w", err)
		default:
			return err
		}
		if request.Resource != "" && len(found) > 0 {
			query.Set("resource", found[0].Resource) // it need not be looked up each time
		}
		progress(found)
		if done, incomplete := ended(found); done && incomplete > 0 {
			return fmt.Errorf("%d snapshots are not complete: records became dead letters, or the resource is gone", incomplete)
		} else if done {
			return nil
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the snapshot goes on without this command: %w", context.Cause(ctx))
		}
	}
}

func ended(all []source.SnapshotStatus) (done bool, incomplete int) {
	for _, s := range all {
		if !s.Done {
			return false, 0
		}
		if !s.Complete {
			incomplete++
		}
	}
	return true, incomplete
}
