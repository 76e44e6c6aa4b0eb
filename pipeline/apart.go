package pipeline

import "slices"

// apartQueue holds ready objects by namespace: those of suspect namespaces, with an object that was in a call which failed as a
// whole. They are sent without objects of other namespaces, so that whoever makes objects that the sink refuses holds up only what
// is in his own namespace. While the breaker is tripped it holds all ready objects, since probes choose among all.
type apartQueue struct {
	// turns are the namespaces that may have objects here. Each batch is the turn of one. Notices are a namespace of their own.
	turns []*namespaceQueue
	names map[string]*namespaceQueue
	// pushes counts the fresh objects.
	pushes int
}

// namespaceQueue holds the objects of a namespace.
type namespaceQueue struct {
	name string
	// fresh are those whose last attempt did not fail, again failed. Both are sent with others of the namespace, every second batch the newest
	// first: those that have waited for long may be refused as those that fail are.
	fresh, again []*objectQueue
	newest       bool
	// first did not fit into the last batch, and is next.
	first *objectQueue
	// pushed is the number of the newest fresh object.
	pushed int
	// untried and failed are isolated, and sent alone. Those that never failed alone take turns with the others: most of them were
	// isolated only for the batch that they were in, and behind a thousand objects that the sink refuses they would wait for a minute.
	untried, failed []*objectQueue
	// aloneNext and failedNext are set if the next to send is one of these.
	aloneNext, failedNext bool
}

func (q *apartQueue) of(namespace string) *namespaceQueue {
	n := q.names[namespace]
	if n == nil {
		n = &namespaceQueue{name: namespace}
		q.names[n.name] = n
		q.turns = append(q.turns, n)
	}
	return n
}

// putBack puts an object back that did not fit into a batch.
func (q *apartQueue) putBack(o *objectQueue) { q.of(o.namespace()).first = o }

func (q *apartQueue) push(o *objectQueue) {
	n := q.of(o.namespace())
	switch {
	case !o.isolated && o.failing:
		n.again = append(n.again, o)
	case !o.isolated:
		q.pushes++
		n.fresh, n.pushed = append(n.fresh, o), q.pushes
	case o.failedAlone:
		n.failed = append(n.failed, o)
	default:
		n.untried = append(n.untried, o)
	}
}

// begin returns the object with which the namespace whose turn it is begins a batch; nil if nothing waits that may be sent. apart and alone
// report whether something of a namespace may be sent, and whether that may be an isolated object.
func (q *apartQueue) begin(apart, alone func(namespace string) bool) *objectQueue {
	for range len(q.turns) {
		n := q.turns[0]
		q.turns = q.turns[1:]
		if !n.ready(true) {
			delete(q.names, n.name)
			continue
		}
		q.turns = append(q.turns, n)
		if !apart(n.name) {
			continue
		}
		if o := n.begin(alone(n.name)); o != nil {
			return o
		}
	}
	return nil
}

// next returns an object that goes on a batch of its namespace; nil if none waits.
func (q *apartQueue) next(namespace string) *objectQueue {
	if n := q.names[namespace]; n != nil {
		return n.next()
	}
	return nil
}

// probe returns the next object for a probe; nil if none may be sent. among reports whether a namespace may be probed, apart the same for
// a suspect one, alone for its isolated objects. Suspect namespaces without a success wait while one that is not suspect has a fresh object
// and had no probe. The next namespace is the first by turns.compare, then the first here, or the one with the newest object. Of its objects,
// the newest whose last attempt did not fail goes first. Without turns, a tenant who makes refused objects all the time would have all.
func (q *apartQueue) probe(turns *turns, among, suspect, apart, alone func(namespace string) bool) *objectQueue {
	var next *namespaceQueue
	clean := slices.ContainsFunc(q.turns, func(n *namespaceQueue) bool {
		return len(n.fresh) > 0 && among(n.name) && !suspect(n.name) && turns.of(n.name) <= 0
	})
	for _, n := range q.turns {
		if !among(n.name) || suspect(n.name) && (clean && turns.succeeded[n.name].IsZero() || !apart(n.name)) || !n.ready(alone(n.name)) {
			continue
		}
		order := 0
		if next != nil {
			order = turns.compare(n.name, next.name)
		}
		if next == nil || order < 0 || order == 0 && turns.newest && n.pushed > next.pushed {
			next = n
		}
	}
	if next == nil {
		return nil
	}
	if len(next.fresh) > 0 {
		return takeLast(&next.fresh)
	}
	return next.begin(alone(next.name))
}

// others reports whether something of another namespace waits.
func (q *apartQueue) others(namespace string) bool {
	return slices.ContainsFunc(q.turns, func(n *namespaceQueue) bool { return n.name != namespace && n.ready(true) })
}

// has reports whether something of a namespace waits that may be sent; alone is whether that may be an isolated object.
func (q *apartQueue) has(namespace string, alone bool) bool {
	n := q.names[namespace]
	return n != nil && n.ready(alone)
}

// takeClean returns the objects of namespaces that are not suspect, and leaves the others. Those of a namespace are together, since any
// may be one that the sink refuses: the fewer batches it shares with others, the better.
func (q *apartQueue) takeClean(suspects map[string]int) (clean []*objectQueue) {
	q.turns = slices.DeleteFunc(q.turns, func(n *namespaceQueue) bool {
		if suspects[n.name] > 0 || n.isolated() {
			return false
		}
		if n.first != nil {
			clean = append(clean, n.first)
		}
		clean = append(append(clean, n.fresh...), n.again...)
		delete(q.names, n.name)
		return true
	})
	return clean
}

// ready reports whether something waits that may be sent; alone is whether that may be an isolated object.
func (n *namespaceQueue) ready(alone bool) bool {
	return n.first != nil || len(n.fresh)+len(n.again) > 0 || alone && n.isolated()
}

func (n *namespaceQueue) isolated() bool { return len(n.untried)+len(n.failed) > 0 }

// begin returns the object that begins a batch of the namespace.
func (n *namespaceQueue) begin(alone bool) *objectQueue {
	switch {
	case n.ready(false) && (!n.aloneNext || !alone || !n.isolated()):
		n.aloneNext, n.newest = true, !n.newest
		return n.next()
	case alone && n.isolated():
		n.aloneNext = false
		n.failedNext = len(n.untried) == 0 || len(n.failed) > 0 && !n.failedNext
		if n.failedNext {
			return takeFirst(&n.failed)
		}
		return takeFirst(&n.untried)
	}
	return nil
}

// next returns an object that goes on a batch of the namespace.
func (n *namespaceQueue) next() *objectQueue {
	switch {
	case n.first != nil:
		o := n.first
		n.first = nil
		return o
	case n.newest && len(n.fresh) > 0:
		return takeLast(&n.fresh)
	case len(n.again) > 0:
		return takeFirst(&n.again)
	case len(n.fresh) > 0:
		return takeFirst(&n.fresh)
	}
	return nil
}

func takeFirst[T any](list *[]*T) *T {
	o := (*list)[0]
	(*list)[0] = nil
	*list = (*list)[1:]
	return o
}

func takeLast(list *[]*objectQueue) *objectQueue {
	last := len(*list) - 1
	o := (*list)[last]
	(*list)[last] = nil
	*list = (*list)[:last]
	return o
}
