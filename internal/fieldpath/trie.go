package fieldpath

// Set is several paths, to be looked for in one walk. It is immutable.
type Set struct {
	root node
	// finite says that every path has at most one match, and how many paths there are: once so many matches are found,
	// a search is over.
	finite bool
	leaves int
}

// node is what the paths that lead here go on with.
type node struct {
	names map[string]*node
	items map[int]*node
	every *node
	// leaf says that a path ends here. Those that go on are inside its match, and left out.
	leaf bool
}

// NewSet makes a set.
func NewSet(paths ...Path) *Set {
	s := &Set{finite: true}
	for _, path := range paths {
		s.add(path)
	}
	s.count(&s.root)
	return s
}

func (s *Set) add(path Path) {
	n := &s.root
	for _, step := range path.steps {
		if n.leaf {
			return
		}
		n = n.child(step)
	}
	*n = node{leaf: true}
}

// child is where a step leads; it is made if need be.
func (n *node) child(step Step) *node {
	switch step.Kind {
	case Every:
		if n.every == nil {
			n.every = &node{}
		}
		return n.every
	case Index:
		if n.items == nil {
			n.items = map[int]*node{}
		}
		if n.items[step.Index] == nil {
			n.items[step.Index] = &node{}
		}
		return n.items[step.Index]
	default:
		if n.names == nil {
			n.names = map[string]*node{}
		}
		if n.names[step.Name] == nil {
			n.names[step.Name] = &node{}
		}
		return n.names[step.Name]
	}
}

func (s *Set) count(n *node) {
	if n.leaf {
		s.leaves++
		return
	}
	for _, child := range n.names {
		s.count(child)
	}
	for _, child := range n.items {
		s.count(child)
	}
	if n.every != nil {
		s.finite = false
	}
}

// start is where a walk begins.
func (s *Set) start() []*node { return append(make([]*node, 0, 16), &s.root) }

// member is where the nodes lead by a name, or true if a path ends there. The result takes the room behind nodes, if
// there is any, so that a walk needs one array: what it finds below a value lies behind what led to the value.
func member(nodes []*node, name string) (next []*node, leaf bool) {
	next = nodes[len(nodes):]
	for _, n := range nodes {
		for _, child := range [2]*node{n.names[name], n.every} {
			if child != nil && child.leaf {
				return next, true
			}
			if child != nil {
				next = append(next, child)
			}
		}
	}
	return next, false
}

// item is [member] for the item of a list.
func item(nodes []*node, index int) (next []*node, leaf bool) {
	next = nodes[len(nodes):]
	for _, n := range nodes {
		for _, child := range [2]*node{n.items[index], n.every} {
			if child != nil && child.leaf {
				return next, true
			}
			if child != nil {
				next = append(next, child)
			}
		}
	}
	return next, false
}

// Keep takes everything out of the object that no path matches, that is in no match, and that holds none. Lists become
// shorter by the items that go.
func (s *Set) Keep(object map[string]any) {
	if s.root.leaf { // a path of no steps
		return
	}
	keepIn(object, s.start())
}

// keepIn returns what is left of value, and false if nothing matched in it.
func keepIn(value any, nodes []*node) (any, bool) {
	switch value := value.(type) {
	case map[string]any:
		for name, child := range value {
			next, leaf := member(nodes, name)
			if leaf {
				continue
			}
			kept, ok := any(nil), false
			if len(next) > 0 {
				kept, ok = keepIn(child, next)
			}
			if ok {
				value[name] = kept
			} else {
				delete(value, name)
			}
		}
		return value, len(value) > 0
	case []any:
		left := value[:0]
		for i, child := range value {
			next, leaf := item(nodes, i)
			if leaf {
				left = append(left, child)
			} else if len(next) > 0 {
				if kept, ok := keepIn(child, next); ok {
					left = append(left, kept)
				}
			}
		}
		clear(value[len(left):])
		return left, len(left) > 0
	default:
		return nil, false
	}
}
