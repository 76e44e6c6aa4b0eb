package config

import "slices"

// enrich checks that a pipeline that adds to Events gets some.
func (v *validator) enrich(p *Pipeline, at string) {
	if p.Enrich == "" || v.faults.isBroken("sources") || v.faults.isBroken(at+".sources") {
		return
	}
	for _, name := range p.Sources {
		i := slices.IndexFunc(v.config.Sources, func(s Source) bool { return s.Name == name })
		if i < 0 || slices.ContainsFunc(v.config.Sources[i].Resources, isEvents) { // what is not there was reported
			return
		}
	}
	v.fault(at+".enrich", "%s is for Events, and no source of the pipeline has any: add v1/events or events.k8s.io/v1/events to one of them, or remove the key", p.Enrich)
}

// enrichment checks the bound that all pipelines share.
func (v *validator) enrichment() {
	switch {
	case v.config.Enrichment.MaxBytes < 1<<20:
		v.fault("enrichment.maxBytes", "must be at least 1Mi")
	case v.present("enrichment.maxBytes") && !slices.ContainsFunc(v.config.Pipelines, func(p Pipeline) bool { return p.Enrich != "" }) &&
		!v.faults.isBroken("pipelines"):
		v.warn("enrichment", "has no effect: no pipeline has `enrich: involvedObject`")
	}
}
