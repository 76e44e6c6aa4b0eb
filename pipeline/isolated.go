package pipeline

// isolatedQueue holds the ready objects that are sent alone, and wait until fewer such calls are under way. Those that never
// failed alone take turns with the others: most of them were isolated only for the batch that they were in, and behind a thousand
// objects that the sink refuses they would wait for a minute.
type isolatedQueue struct {
	untried, failed []*objectQueue
	failedNext      bool
}

func (q *isolatedQueue) push(o *objectQueue) {
	if o.failedAlone {
		q.failed = append(q.failed, o)
	} else {
		q.untried = append(q.untried, o)
	}
}

// pop returns the object that has waited the longest in the list whose turn it is, nil if both are empty.
func (q *isolatedQueue) pop() *objectQueue {
	from := &q.untried
	if q.failedNext && len(q.failed) > 0 || len(q.untried) == 0 {
		from = &q.failed
	}
	if len(*from) == 0 {
		return nil
	}
	q.failedNext = from == &q.untried
	o := (*from)[0]
	(*from)[0] = nil
	*from = (*from)[1:]
	return o
}
