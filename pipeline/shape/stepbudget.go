package shape

import (
	"maps"
	"sync"
	"time"

	"github.com/kubeferry/kubeferry/internal/expr"
)

// Filters and transforms run in the goroutine of their watch, one change after another. If each change of a namespace takes an
// expression 100 ms, ten changes a second delay those of all other namespaces without end. So each namespace has a budget for such
// evaluations. When it is used up, the limit of an evaluation is lower: a cheap one has its result, and an expensive one makes its
// change a dead letter.
const (
	// maxSteps is how many steps, in evaluations that are not brief, a namespace may spend at once: about a second.
	maxSteps = 10_000_000
	// stepsPerSecond is how many it gets back, but not while an evaluation lasts. On a slow or busy machine a million steps take
	// half a second or more, and the budget would never be used up.
	stepsPerSecond = 2_000_000
)

// stepBudget is what each namespace has spent. The zero value is nothing.
type stepBudget struct {
	mu    sync.Mutex // guards spent
	spent map[string]spentSteps
}

type spentSteps struct {
	steps float64
	at    time.Time
}

// after returns what is left of the steps spent at a time.
func (s spentSteps) after(now time.Time) float64 {
	return max(0, s.steps-max(0, now.Sub(s.at).Seconds())*stepsPerSecond)
}

func (b *stepBudget) exhausted(namespace string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent[namespace].after(now) >= maxSteps
}

// spend notes the steps of an evaluation, and when that began.
func (b *stepBudget) spend(namespace string, steps uint64, began time.Time) {
	if steps <= expr.BriefLimit {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if _, ok := b.spent[namespace]; !ok { // namespaces come and go
		maps.DeleteFunc(b.spent, func(_ string, s spentSteps) bool { return s.after(now) == 0 })
	}
	if b.spent == nil {
		b.spent = map[string]spentSteps{}
	}
	b.spent[namespace] = spentSteps{b.spent[namespace].after(began) + float64(steps), now}
}

// meter takes the evaluations on one object from the budget of its namespace. The zero value has no bound.
type meter struct {
	budget    *stepBudget
	namespace string
	began     time.Time // of the last evaluation
}

// Brief implements [expr.Metered].
func (m *meter) Brief() bool {
	m.began = time.Now()
	return m.budget != nil && m.budget.exhausted(m.namespace, m.began)
}

// Spent implements [expr.Metered].
func (m *meter) Spent(steps uint64) {
	if m.budget != nil {
		m.budget.spend(m.namespace, steps, m.began)
	}
}
