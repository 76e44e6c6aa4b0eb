package fieldpath

// Set is a set of paths that are looked for in one pass over an object. It is immutable.
type Set struct{ root node }

// node is what the paths that lead here go on with.
type node struct {
	steps map[Step]*node
	// leaf is set if a path ends here. Those that go on are inside its match, and left out.
	leaf bool
}

// NewSet returns the set of the paths.
func NewSet(paths ...Path) *Set {
	s := &Set{}
	for _, path := range paths {
		s.add(path)
	}
	return s
}

func (s *Set) add(path Path) {
	n := &s.root
	for _, step := range path.steps {
		if n.leaf {
			return
		}
		if n.steps == nil {
			n.steps = map[Step]*node{}
		}
		if n.steps[step] == nil {
			n.steps[step] = &node{}
		}
		n = n.steps[step]
	}
	*n = node{leaf: true}
}

// follow returns where the nodes lead by a name or an index, or true if a path ends there.
func follow(nodes []*node, step Step) (next []*node, leaf bool) {
	for _, n := range nodes {
		for _, child := range [2]*node{n.steps[step], n.steps[Step{Kind: Every}]} {
			if child != nil && child.leaf {
				return nil, true
			}
			if child != nil {
				next = append(next, child)
			}
		}
	}
	return next, false
}

// Keep removes everything from the object except for the matches, what is in them, and the maps and lists around them. Items that
// are removed leave no hole in their list.
func (s *Set) Keep(object map[string]any) {
	if s.root.leaf { // a path of no steps
		return
	}
	keepIn(object, []*node{&s.root})
}

// keepIn returns what is left of value, and false if nothing matched in it.
func keepIn(value any, nodes []*node) (any, bool) {
	switch value := value.(type) {
	case map[string]any:
		for name, child := range value {
			next, leaf := follow(nodes, Step{Kind: Name, Name: name})
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
			next, leaf := follow(nodes, Step{Kind: Index, Index: i})
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
