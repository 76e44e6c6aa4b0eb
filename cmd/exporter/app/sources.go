package app

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"slices"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/source"
)

// A configuration with more pipelines of a source than it can have does not load.
const _ = uint(source.MaxPipelines - config.MaxPipelines)

// newSources makes the configured sources; nothing is watched yet.
func newSources(loaded *config.Config, client *source.Client, pipelines []*pipeline.Pipeline, state *state, metrics *source.Metrics, logger *slog.Logger) ([]*source.Source, error) {
	var made []*source.Source
	previous := source.NewPreviousVersions(int64(loaded.Previous.MaxBytes))
	for _, c := range loaded.Sources {
		fan := &fanOut{committer: state.committer, secure: state.secure}
		var filters []string
		for n, p := range loaded.Pipelines {
			if slices.Contains(p.Sources, c.Name) {
				fan.pipelines = append(fan.pipelines, pipelines[n])
				filters = append(filters, filterDigest(&p))
			}
		}
		if len(fan.pipelines) == 0 {
			continue // no pipeline takes from it
		}
		options := resources.Options(&c)
		options.Filters, options.Previous, options.HistoryLost, options.Offset = filters, previous, state.historyLost, state.offset
		fan.setPipelines(&options)
		made = append(made, source.New(client, options, fan, metrics, logger))
	}
	if err := state.restore(made); err != nil {
		return nil, fmt.Errorf("restore the sources: %w", err)
	}
	return made, nil
}

// startingWatches are the watches of the sources, before these are made.
func startingWatches(loaded *config.Config) (all []source.WatchStatus) {
	for _, c := range loaded.Sources {
		if len(loaded.Takers(c.Name)) > 0 {
			all = append(all, source.Starting(resources.Options(&c))...)
		}
	}
	return all
}

// filterDigest identifies the filters of a pipeline, and what they see of an object if that is not the default.
func filterDigest(p *config.Pipeline) string {
	sum := sha256.New()
	for _, f := range p.Filters {
		fmt.Fprintf(sum, "%v %v %v %q %v\n", f.Types, f.Namespaces, f.Changed, f.Expr, f.OnError)
		if l := f.Limit; l != nil {
			fmt.Fprintf(sum, "%q %d %v\n", l.Per, l.Count, l.Every)
		}
	}
	if len(p.Filters) > 0 && (!p.RedactSecrets || p.KeepManagedFields || p.Enrich != "") {
		fmt.Fprintf(sum, "%v %v %v\n", p.RedactSecrets, p.KeepManagedFields, p.Enrich)
	}
	return hex.EncodeToString(sum.Sum(nil)[:6])
}
