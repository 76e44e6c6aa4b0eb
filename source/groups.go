package source

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// groupsInterval is how often discovery is read for the groups of wildcards: a small request for all groups, and one for each of their versions.
const groupsInterval = 10 * time.Second

// groups are what the API server serves of the groups of wildcards. A group that cannot be read stays as it was.
type groups struct {
	client    *Client
	wildcards []schema.GroupVersionResource
	options   *Options
	health    []*health // of each wildcard
	wake      func()

	mu     sync.Mutex // guards what follows
	latest []Served
	read   map[string]bool // the groups that were
}

func newGroups(s *Source, wake func()) *groups {
	g := &groups{client: s.client, wildcards: s.options.wildcards(), options: &s.options, wake: wake, read: map[string]bool{}}
	for _, w := range g.wildcards {
		g.health = append(g.health, &health{
			resource: w, current: starting(s.options.Name, w, ""),
			logger: s.logger.With("source", s.options.Name, "resource", delta.ResourceName(w)),
		})
	}
	return g
}

func (g *groups) status() (all []WatchStatus) {
	for _, h := range g.health {
		all = append(all, h.status())
	}
	return all
}

// served are the resources of the groups, those in a version that the API server prefers first. They are complete once each group was read.
func (g *groups) served() (all []Served, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	unread := func(w schema.GroupVersionResource) bool { return !g.read[w.Group] }
	return g.latest, !slices.ContainsFunc(g.wildcards, unread)
}

// run reads discovery until ctx ends.
func (g *groups) run(ctx context.Context) {
	for {
		g.look(ctx)
		select {
		case <-time.After(wait.Jitter(g.options.discovery, 0.2)):
		case <-ctx.Done():
			return
		}
	}
}

// look reads discovery once.
func (g *groups) look(ctx context.Context) {
	served, failed, err := g.client.Served(ctx, g.options.groups()...)
	if ctx.Err() != nil {
		return
	}
	unread := func(group string) error {
		n := slices.IndexFunc(failed, func(gv schema.GroupVersion) bool { return gv.Group == group })
		if err == nil && n >= 0 {
			return fmt.Errorf("discovery of %s cannot be read", failed[n])
		}
		return err
	}
	g.mu.Lock()
	next := slices.DeleteFunc(served, func(s Served) bool { return unread(s.Group) != nil })
	for _, s := range g.latest {
		if unread(s.Group) != nil {
			next = append(next, s)
		}
	}
	g.latest = next
	for _, w := range g.wildcards {
		g.read[w.Group] = g.read[w.Group] || unread(w.Group) == nil
	}
	g.mu.Unlock()
	for n, w := range g.wildcards {
		if err := unread(w.Group); err != nil {
			g.health[n].failed(err)
			continue
		}
		found := 0
		for _, r := range g.options.matching(next, nil) {
			if delta.Covers(w, r) {
				found++
			}
		}
		if g.health[n].status().State != StateWatching {
			g.health[n].opened(true)
		}
		g.health[n].active(time.Now(), "", found)
	}
	g.wake()
}
