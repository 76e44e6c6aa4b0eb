package config

import (
	"github.com/kubeferry/kubeferry/internal/expr"
)

// filters checks that each filter of a pipeline has one condition with something in it, and compiles the expressions.
func (v *validator) filters(p *Pipeline, at string) {
	for i := range p.Filters {
		filter, path := &p.Filters[i], index(at+".filters", i)
		conditions := v.keys(path)
		if v.has(path + ".onError") {
			conditions--
			if !v.has(path + ".expr") {
				v.fault(path+".onError", "belongs beside an expr, which may fail; no other filter does")
			}
		}
		switch {
		case v.keys(path) == 0 && !v.faults.isBroken(path):
			v.fault(path, "has no key: give it types, namespaces, changed, limit or expr")
		case conditions > 1:
			v.fault(path, "has %d keys; a filter has one: write one entry for each", conditions)
		}
		for j, changed := range filter.Changed {
			v.knownPath(changed.Path, index(path+".changed", j))
		}
		if n := filter.Namespaces; n != nil {
			if !v.has(path+".namespaces.include") && !v.has(path+".namespaces.exclude") {
				v.fault(path+".namespaces", "has neither include nor exclude")
			}
			v.namespaces(*n, path+".namespaces")
		}
		if l := filter.Limit; l != nil {
			l.Program = v.expression(path+".limit.per", l.Per, expr.Value)
		}
		if v.present(path + ".expr") {
			filter.Written = v.decode.at(path + ".expr").raw
		}
		filter.Program = v.expression(path+".expr", filter.Expr, expr.Filter)
	}
}
