package alerts

import (
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

// store holds series in memory, by their names.
type store map[string]*promql.Series

// Querier implements [storage.Queryable].
func (s store) Querier(int64, int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, selector ...*labels.Matcher) storage.SeriesSet {
		set := &seriesSet{}
		for _, series := range s {
			if matches(series.Metric, selector) {
				set.left = append(set.left, promql.NewStorageSeries(*series))
			}
		}
		return set
	}}, nil
}

func matches(metric labels.Labels, selector []*labels.Matcher) bool {
	for _, m := range selector {
		if !m.Matches(metric.Get(m.Name)) {
			return false
		}
	}
	return true
}

// seriesSet goes through series.
type seriesSet struct {
	left    []storage.Series
	current storage.Series
}

// Next implements [storage.SeriesSet].
func (s *seriesSet) Next() bool {
	if len(s.left) == 0 {
		return false
	}
	s.current, s.left = s.left[0], s.left[1:]
	return true
}

// At implements [storage.SeriesSet].
func (s *seriesSet) At() storage.Series { return s.current }

// Err implements [storage.SeriesSet].
func (*seriesSet) Err() error { return nil }

// Warnings implements [storage.SeriesSet].
func (*seriesSet) Warnings() annotations.Annotations { return nil }
