package pipeline

// apartQueue holds the ready objects of suspect namespaces: those with an object that was in a call which failed as a whole. They
// are sent without objects of other namespaces, so that whoever makes objects that the sink refuses holds up only what is in his
// own namespace.
type apartQueue struct {
	// turns are the namespaces that may have objects here. Each batch is the turn of one.
	turns []*namespaceQueue
	names map[string]*namespaceQueue
}

// namespaceQueue holds the objects of a namespace.
type namespaceQueue struct {
	name string
	// together are sent with others of the namespace, every second batch the newest first: those that have waited for long may be
	// refused as those that fail are.
	together []*objectQueue
	newest   bool
	// untried and failed are isolated, and sent alone. Those that never failed alone take turns with the others: most of them were
	// isolated only for the batch that they were in, and behind a thousand objects that the sink refuses they would wait for a minute.
	untried, failed []*objectQueue
	// aloneNext and failedNext are set if the next to send is one of these.
	aloneNext, failedNext bool
}

func (q *apartQueue) push(o *objectQueue) {
	n := q.names[o.ref.Namespace]
	if n == nil {
		n = &namespaceQueue{name: o.ref.Namespace}
		q.names[n.name] = n
		q.turns = append(q.turns, n)
	}
	switch {
	case !o.isolated:
		n.together = append(n.together, o)
	case o.failedAlone:
		n.failed = append(n.failed, o)
	default:
		n.untried = append(n.untried, o)
	}
}

// begin returns the object with which the namespace whose turn it is begins a batch; nil if nothing waits that may be sent. alone is
// whether that may be an isolated one.
func (q *apartQueue) begin(alone bool) *objectQueue {
	for range len(q.turns) {
		n := q.turns[0]
		q.turns = q.turns[1:]
		isolated := len(n.untried) + len(n.failed)
		if isolated+len(n.together) == 0 {
			delete(q.names, n.name)
			continue
		}
		q.turns = append(q.turns, n)
		switch {
		case len(n.together) > 0 && (!n.aloneNext || !alone || isolated == 0):
			n.aloneNext, n.newest = true, !n.newest
			return q.next(n.name)
		case alone && isolated > 0:
			n.aloneNext = false
			n.failedNext = len(n.untried) == 0 || len(n.failed) > 0 && !n.failedNext
			if n.failedNext {
				return takeFirst(&n.failed)
			}
			return takeFirst(&n.untried)
		}
	}
	return nil
}

// next returns an object that goes on a batch of its namespace; nil if none waits.
func (q *apartQueue) next(namespace string) *objectQueue {
	n := q.names[namespace]
	switch {
	case n == nil || len(n.together) == 0:
		return nil
	case n.newest:
		last := len(n.together) - 1
		o := n.together[last]
		n.together[last] = nil
		n.together = n.together[:last]
		return o
	default:
		return takeFirst(&n.together)
	}
}

// takeAll returns all objects and leaves none.
func (q *apartQueue) takeAll() (all []*objectQueue) {
	for _, n := range q.turns {
		all = append(all, n.together...)
		all = append(all, n.untried...)
		all = append(all, n.failed...)
	}
	q.turns = nil
	clear(q.names)
	return all
}

func takeFirst(list *[]*objectQueue) *objectQueue {
	o := (*list)[0]
	(*list)[0] = nil
	*list = (*list)[1:]
	return o
}
