package config

import (
	"errors"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
)

// expression compiles the expression at path, reporting all that is wrong with it with a caret under each place. It
// returns nil if it cannot be used.
func (v *validator) expression(path, text string, kind expr.Kind) *expr.Program {
	if !v.present(path) || v.broken.isBroken(path) {
		return nil
	}
	program, err := expr.Compile(text, kind)
	var faults expr.Faults
	switch {
	case err != nil && v.decode.at(path).value.expanded:
		v.fault(path, "is not a valid expression; what is wrong is not shown, because it came from outside the file")
	case errors.As(err, &faults):
		for _, fault := range faults {
			v.fault(path, "%s%s", fault.Message, v.point(path, fault.Offset))
		}
	case err != nil:
		v.fault(path, "%v", err)
	}
	if err != nil {
		return nil
	}
	if !v.decode.at(path).value.expanded {
		for _, warning := range program.Warnings() {
			v.warn(path, "%s%s", warning.Message, v.point(path, warning.Offset))
		}
	}
	return program
}

// exprFilters compiles the expressions among a pipeline's filters.
func (v *validator) exprFilters(p *Pipeline, at string) {
	for i := range p.Filters {
		filter, path := &p.Filters[i], index(at+".filters", i)
		if v.has(path+".onError") && !v.has(path+".expr") {
			v.fault(path+".onError", "belongs beside an expr, which may fail; no other filter does")
		}
		if filter.Program = v.expression(path+".expr", filter.Expr, expr.Filter); filter.Program != nil {
			v.canPass(p, at, path+".expr", filter.Program)
			v.readsManagedFields(p, path+".expr", filter.Program)
		}
	}
}

// canPass reports an expression that is true for nothing of what the pipeline takes.
func (v *validator) canPass(p *Pipeline, at, path string, program *expr.Program) {
	uses := program.Uses()
	if !uses.Type && !uses.Resource {
		return // what can be said without an object has been said
	}
	types := v.typesOf(p, at)
	resources, shown := v.resourcesOf(p)
	if len(types) == 0 || len(resources) == 0 {
		return
	}
	says := "is never true"
	for _, t := range types {
		for _, resource := range resources {
			switch program.Outcome(expr.Known{Type: string(t), Resource: &resource}) {
			case expr.Open, expr.Always:
				return
			case expr.Fails:
				says = "is false or has no result"
			case expr.Never:
			}
		}
	}
	hint := ""
	if says == "is never true" {
		hint = ": nothing would pass"
	}
	v.fault(path, "%s for what the pipeline takes (%s of %s)%s", says, joined(types), strings.Join(shown, ", "), hint)
}

// typesOf are the types that the filters for types let pass; none if one of these could not be read.
func (v *validator) typesOf(p *Pipeline, at string) []delta.Type {
	types := []delta.Type{delta.Added, delta.Modified, delta.Deleted}
	for i, filter := range p.Filters {
		if v.broken.isBroken(index(at+".filters", i) + ".types") {
			return nil
		}
		if filter.Types == nil {
			continue
		}
		types = slices.DeleteFunc(types, func(t delta.Type) bool { return !slices.Contains(filter.Types, t) })
	}
	return types
}

// resourcesOf are the resources of a pipeline's sources, also as the file shows them; none if one could not be read.
func (v *validator) resourcesOf(p *Pipeline) (resources []schema.GroupVersionResource, shown []string) {
	for i, source := range v.config.Sources {
		if !slices.Contains(p.Sources, source.Name) {
			continue
		}
		path := index("sources", i) + ".resources"
		if v.broken.isBroken(path) {
			return nil, nil
		}
		for j, resource := range source.Resources {
			resources, shown = append(resources, resource), append(shown, v.shown(index(path, j)))
		}
	}
	return resources, shown
}

func joined[T ~string](list []T) string {
	texts := make([]string, len(list))
	for i, text := range list {
		texts[i] = string(text)
	}
	return strings.Join(texts, ", ")
}
