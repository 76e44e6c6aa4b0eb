package shape

import (
	"context"
	"crypto/sha256"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
)

// maxPassed is how many changes that passed a LimitFilter remembers, of all keys together. Beyond it, it forgets the key whose interval began first,
// and lets its next change pass.
const maxPassed = 10_000

// LimitFilter passes the first changes of each key in an interval. It remembers keys in memory only.
type LimitFilter struct {
	ExprFilter // of the kind [expr.Value]: what the key is made of
	count      int
	every      time.Duration
	passed     *passedChanges
}

// passedChanges are those that passed in the present interval of their key.
type passedChanges struct {
	mu        sync.Mutex // guards what follows
	intervals map[[sha256.Size]byte]*interval
	order     []*interval // in which they began
	total     int         // of their ids
}

type interval struct {
	key   [sha256.Size]byte
	began time.Time
	ids   []string
}

// NewLimitFilter makes a filter that passes count changes of each key in an interval, which begins with the first of them.
func NewLimitFilter(per *expr.Program, count int, every time.Duration) LimitFilter {
	passed := &passedChanges{intervals: map[[sha256.Size]byte]*interval{}}
	return LimitFilter{NewExprFilter(per, "", OnErrorPass), count, every, passed}
}

// OfObject implements [Filter].
func (LimitFilter) OfObject() bool { return false }

// Pass implements [Filter]. A change that passed once does so each time it is asked about: there may be no room for it at first. An explanation
// uses nothing up.
func (f LimitFilter) Pass(c *Change) (bool, error) {
	if c.trace != nil {
		return true, nil
	}
	value, err := f.program.Eval(context.Background(), c)
	if err != nil {
		return f.fails(c, err)
	}
	key, _ := delta.EncodeJSON(value) // Eval returns what JSON can hold
	return f.passed.take(sha256.Sum256(key), c.observed.ID("")+strconv.FormatUint(c.observed.SnapshotSequence, 10), c.observed.Observed, f.count, f.every), nil
}

func (p *passedChanges) take(key [sha256.Size]byte, id string, now time.Time, count int, every time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.order) > 0 && (p.total >= maxPassed || now.Sub(p.order[0].began) >= every) {
		p.total -= len(p.order[0].ids)
		delete(p.intervals, p.order[0].key)
		p.order = p.order[1:]
	}
	i := p.intervals[key]
	if i == nil {
		i = &interval{key: key, began: now}
		p.intervals[key] = i
		p.order = append(p.order, i)
	}
	switch {
	case slices.Contains(i.ids, id):
		return true
	case len(i.ids) >= count:
		return false
	}
	i.ids = append(i.ids, id)
	p.total++
	return true
}
