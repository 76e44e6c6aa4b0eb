package sinks

// PerNamespace counts something, as calls under way, by namespace.
type PerNamespace struct {
	Total int
	of    map[string]int
}

// Add counts n more, or fewer, of a namespace.
func (c *PerNamespace) Add(namespace string, n int) {
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.Total += n
	if c.of[namespace] += n; c.of[namespace] == 0 {
		delete(c.of, namespace)
	}
}

// Room reports whether there may be one more of a namespace, where there may be so many, at least one. The last is for a namespace that
// has none: a sink that hangs on the records of one would keep all others of them waiting.
func (c *PerNamespace) Room(namespace string, most int) bool {
	return c.Total < most-1 || c.Total < max(1, most) && c.of[namespace] == 0
}

// Of returns how many there are of a namespace.
func (c *PerNamespace) Of(namespace string) int { return c.of[namespace] }
