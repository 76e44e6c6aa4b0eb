// Package alerts evaluates alerting rules with Prometheus' parser of rule files and its engine. Only the waiting for a
// rule's `for` is our own: Prometheus' package for that imports the clients of every cloud.
package alerts

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// Rule is a rule as it is in its file.
type Rule = rulefmt.Rule

// Load reads a file of alerting rules, as strictly as Prometheus does.
func Load(file string) ([]Rule, error) {
	read, errs := rulefmt.ParseFile(file, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	var rules []Rule
	for _, group := range read.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules, nil
}

// Evaluator is a Prometheus server that holds what was scraped, and since when each alert has held. It is not for several
// goroutines at once.
type Evaluator struct {
	rules  []Rule
	parser parser.Parser
	engine *promql.Engine
	stored store
	since  map[string]time.Time // by alert with its labels
}

// NewEvaluator returns an Evaluator that has scraped nothing yet.
func NewEvaluator(rules []Rule) *Evaluator {
	return &Evaluator{
		rules: rules, parser: parser.NewParser(parser.Options{}), stored: store{}, since: map[string]time.Time{},
		engine: promql.NewEngine(promql.EngineOpts{MaxSamples: 1_000_000, Timeout: time.Minute}),
	}
}

// Scrape stores the samples of a scrape, each named by its metric and labels as on /metrics, and evaluates the rules. It
// returns the alerts that fire, such as KubeferrySinkFails{pipeline="p"}. Each call needs a later time than the one before.
func (e *Evaluator) Scrape(ctx context.Context, at time.Time, samples map[string]float64) (firing []string, err error) {
	for name, value := range samples {
		series, ok := e.stored[name]
		if !ok {
			metric, err := e.parser.ParseMetric(name)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			series = &promql.Series{Metric: metric}
			e.stored[name] = series
		}
		series.Floats = append(series.Floats, promql.FPoint{T: at.UnixMilli(), F: value})
	}
	held := map[string]time.Time{}
	for _, rule := range e.rules {
		alerts, err := e.evaluate(ctx, rule, at)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", rule.Alert, err)
		}
		for _, alert := range alerts {
			held[alert] = at
			if since, ok := e.since[alert]; ok {
				held[alert] = since
			}
			if at.Sub(held[alert]) >= time.Duration(rule.For) {
				firing = append(firing, alert)
			}
		}
	}
	e.since = held
	slices.Sort(firing)
	return firing, nil
}

// Query returns what an expression is at the time of a scrape.
func (e *Evaluator) Query(ctx context.Context, expr string, at time.Time) (promql.Vector, error) {
	query, err := e.engine.NewInstantQuery(ctx, e.stored, nil, expr, at)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	vector, err := query.Exec(ctx).Vector()
	return slices.Clone(vector), err
}

// Range returns what an expression is between two times, in steps.
func (e *Evaluator) Range(ctx context.Context, expr string, from, to time.Time, step time.Duration) (promql.Matrix, error) {
	query, err := e.engine.NewRangeQuery(ctx, e.stored, nil, expr, from, to, step)
	if err != nil {
		return nil, err
	}
	defer query.Close()
	matrix, err := query.Exec(ctx).Matrix()
	matrix = slices.Clone(matrix)
	for i, series := range matrix {
		matrix[i].Floats = slices.Clone(series.Floats) // Close gives them away
	}
	return matrix, err
}

// evaluate returns the alerts of a rule whose expression holds.
func (e *Evaluator) evaluate(ctx context.Context, rule Rule, at time.Time) (alerts []string, err error) {
	vector, err := e.Query(ctx, rule.Expr, at)
	for _, sample := range vector {
		alerts = append(alerts, rule.Alert+labels.NewBuilder(sample.Metric).Del(model.MetricNameLabel).Labels().String())
	}
	return alerts, err
}

// Series returns the names of the scraped series that a rule's expression selects.
func (e *Evaluator) Series(rule Rule) (names []string, err error) {
	expr, err := e.parser.ParseExpr(rule.Expr)
	if err != nil {
		return nil, err
	}
	for _, selector := range parser.ExtractSelectors(expr) {
		for name, series := range e.stored {
			if matches(series.Metric, selector) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Metrics returns the names of the metrics that an expression selects.
func Metrics(expr string) (names []string, err error) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, err
	}
	for _, selector := range parser.ExtractSelectors(parsed) {
		for _, m := range selector {
			if m.Name == model.MetricNameLabel {
				names = append(names, m.Value)
			}
		}
	}
	return names, nil
}
