package pipeline

// Transform changes what leaves.
type Transform interface {
	Apply(object map[string]any, c *Change) error
}
