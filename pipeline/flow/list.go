package flow

// list is a doubly linked list of values that hold their own nodes, so that a value leaves it from any place without a search.
type list[T any] struct {
	first, last *node[T]
	length      int
}

// node is a value's place in a list.
type node[T any] struct {
	value      *T
	in         *list[T] // nil while it is in none
	prev, next *node[T]
}

func (l *list[T]) pushBack(n *node[T]) {
	n.in, n.prev, n.next = l, l.last, nil
	if l.last == nil {
		l.first = n
	} else {
		l.last.next = n
	}
	l.last = n
	l.length++
}

// leave takes the node out of its list, if it is in one.
func (n *node[T]) leave() {
	l := n.in
	if l == nil {
		return
	}
	if n.prev == nil {
		l.first = n.next
	} else {
		n.prev.next = n.next
	}
	if n.next == nil {
		l.last = n.prev
	} else {
		n.next.prev = n.prev
	}
	l.length--
	n.in, n.prev, n.next = nil, nil, nil
}
