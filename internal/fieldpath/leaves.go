package fieldpath

import "slices"

// Leaves returns the innermost values of all matches, by the texts of their paths. They show a person why [Set.DifferJSON]
// returned true. An empty map or list is an innermost value, too.
func (p Path) Leaves(object map[string]any) map[string]any {
	leaves := map[string]any{}
	p.visit(object, func(at place) { addLeaves(leaves, slices.Clone(at.steps), at.value()) })
	return leaves
}

func addLeaves(leaves map[string]any, at []Step, value any) {
	below := func(step Step, value any) { addLeaves(leaves, append(at[:len(at):len(at)], step), value) }
	members, _ := value.(map[string]any)
	for name, member := range members {
		below(Step{Kind: Name, Name: name}, member)
	}
	items, _ := value.([]any)
	for i, item := range items {
		below(Step{Kind: Index, Index: i}, item)
	}
	if len(members)+len(items) == 0 {
		leaves[Path{steps: at}.String()] = value
	}
}
