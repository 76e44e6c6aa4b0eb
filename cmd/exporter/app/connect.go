package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/rbac"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/replication"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/source"
)

// connectTimeout bounds each check.
const connectTimeout = 15 * time.Second

// check is one line of what Connect writes.
type check struct {
	name     string
	run      func(context.Context) error
	optional bool // a run goes on without it
}

// Connect checks what a run depends on, all at once, and writes one line for each: every resource and every right at the API
// server, and every sink, opened without sending a record.
func Connect(ctx context.Context, loaded *config.Config, cluster *rest.Config, version string, out io.Writer, logger *slog.Logger) error {
	if err := Resolve(ctx, loaded, cluster); err != nil {
		return err
	}
	client, err := source.NewClient(cluster, false)
	if err != nil {
		return err
	}
	checks := expandWildcards(ctx, loaded, client)
	checks = append(checks, checkResources(loaded, client)...)
	checks = append(checks, checkRights(loaded, client)...)
	checks = append(checks, checkReplicas(loaded, client, cluster)...)
	for _, c := range loaded.Sinks {
		checks = append(checks, check{
			name: fmt.Sprintf("%s (%s)", c.Name, c.Kind),
			run:  func(ctx context.Context) error { return checkSink(ctx, c, version, logger) },
		})
	}
	errs := make([]error, len(checks))
	var running sync.WaitGroup
	for n, c := range checks {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, connectTimeout)
			defer cancel()
			errs[n] = c.run(ctx)
		})
	}
	running.Wait()
	failed := 0
	for n, c := range checks {
		switch {
		case errs[n] == nil:
			fmt.Fprintf(out, "ok      %s\n", c.name)
		case c.optional || errors.Is(errs[n], replication.ErrNoServiceAccount): // the latter: outside of a Pod
			fmt.Fprintf(out, "warning %s: %v\n", c.name, errs[n])
		default:
			failed++
			fmt.Fprintf(out, "failed  %s: %v\n", c.name, errs[n])
		}
	}
	if failed > 0 {
		return &FailureError{fmt.Errorf("%d of %d checks failed", failed, len(checks))}
	}
	return nil
}

// expandWildcards puts the resources in the place of wildcards that these stand for now: the rights may be for these alone. It returns a check
// for each wildcard.
func expandWildcards(ctx context.Context, loaded *config.Config, client *source.Client) (checks []check) {
	for n := range loaded.Sources {
		s := &loaded.Sources[n]
		limited, cancel := context.WithTimeout(ctx, connectTimeout)
		found, err := client.Matching(limited, resources.Options(s))
		cancel()
		all := s.Resources
		s.Resources = append(slices.DeleteFunc(slices.Clone(all), delta.IsWildcard), found...)
		for _, wildcard := range all {
			if delta.IsWildcard(wildcard) {
				checks = append(checks, checkWildcard(s.Name, wildcard, found, err))
			}
		}
	}
	return checks
}

// checkWildcard reports which resources a wildcard stands for. A run goes on without any.
func checkWildcard(source string, wildcard schema.GroupVersionResource, found []schema.GroupVersionResource, err error) check {
	count := 0
	for _, r := range found {
		if delta.Covers(wildcard, r) {
			count++
		}
	}
	c := check{name: fmt.Sprintf("%s (source %s), of which there are %d", delta.ResourceName(wildcard), source, count), optional: err == nil}
	if err == nil && count == 0 {
		err = errors.New("the API server has none yet that can be watched")
	}
	c.run = func(context.Context) error { return err }
	return c
}

// checkResources checks that the API server serves each resource, and lists it with the source's selectors.
func checkResources(loaded *config.Config, client *source.Client) (checks []check) {
	for _, s := range loaded.Sources {
		for _, resource := range s.Resources {
			checks = append(checks, check{
				name: fmt.Sprintf("%s (source %s)", delta.ResourceName(resource), s.Name),
				run: func(ctx context.Context) error {
					options := resources.Options(&s)
					options.Resources = []schema.GroupVersionResource{resource}
					return client.Check(ctx, options)
				},
			})
		}
	}
	return checks
}

// checkRights checks that the API server grants each rule that a run needs. Without those on objects that Events are about it goes on:
// such Events have no metadata of their object.
func checkRights(loaded *config.Config, client *source.Client) (checks []check) {
	needed := rbac.Needed(loaded)
	for _, rule := range needed {
		checks = append(checks, checkRule(rule, client))
	}
	for _, rule := range rbac.Needed(loaded, rbac.Enrichment(loaded)...) {
		if !slices.ContainsFunc(needed, func(other rbac.Rule) bool { return other.String() == rule.String() }) {
			c := checkRule(rule, client)
			c.optional = true
			checks = append(checks, c)
		}
	}
	return checks
}

func checkRule(rule rbac.Rule, client *source.Client) check {
	return check{name: "right of a " + rule.String(), run: func(ctx context.Context) error {
		verb, err := rule.Missing(ctx, client)
		if err == nil && verb != "" {
			err = fmt.Errorf("%s is not granted; `kubeferry rbac` prints all rules that are needed", verb)
		}
		return err
	}}
}

// checkReplicas checks the rights by which replicas elect a leader and recognize each other: the latter with a token for no one else.
func checkReplicas(loaded *config.Config, client *source.Client, cluster *rest.Config) (checks []check) {
	if loaded.LeaderElection == nil {
		return nil
	}
	if err := leaseNamespace(loaded.LeaderElection); err != nil {
		return []check{{name: "the Lease", run: func(context.Context) error { return err }, optional: true}}
	}
	for _, rule := range rbac.Replicas(loaded, rbac.Grant{}) {
		if rule.Resource == "leases" {
			checks = append(checks, checkRule(rule, client))
		}
	}
	return append(checks, check{name: "the ServiceAccount of replicas, its tokens, and their reviews", run: func(ctx context.Context) error {
		api, err := replication.NewAPI(cluster)
		if err != nil {
			return err
		}
		auth, err := replication.NewAuthenticator(ctx, api)
		if err != nil {
			return err
		}
		const audience = "kubeferry-validate"
		token, err := auth.Token(ctx, audience)
		if err != nil {
			return err
		}
		return auth.Check(ctx, audience, token)
	}})
}

// checkSink opens a sink as a run does, without sending a record. One that is no [sinks.Checker] has nothing to check.
func checkSink(ctx context.Context, c config.Sink, version string, logger *slog.Logger) error {
	sink, err := c.Config.Open(ctx, sinks.Env{Name: c.Name, UserAgent: UserAgent(version), Logger: logger.With("sink", c.Name)})
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
		defer cancel()
		_ = sink.Close(closing) // nothing was sent, so nothing can be lost
	}()
	if checker, ok := sink.(sinks.Checker); ok {
		return checker.Check(ctx)
	}
	return nil
}
