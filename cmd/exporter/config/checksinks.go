package config

import (
	"slices"
	"strings"
)

func (v *validator) sinks() {
	v.sinkNames = v.names("sinks", len(v.config.Sinks))
	for i, sink := range v.config.Sinks {
		if sink.Config == nil {
			continue
		}
		section := join(index("sinks", i), sink.Kind)
		for _, fault := range sink.Config.Validate() {
			path := strings.TrimSuffix(section+"."+fault.Path, ".")
			message := v.scrub(fault.Message, section)
			if fault.Warning {
				v.warn(path, "%s", message)
			} else {
				v.fault(path, "%s", message)
			}
		}
	}
}

// warnUnused warns about sources and sinks that no pipeline names.
func (v *validator) warnUnused() {
	if len(v.config.Pipelines) == 0 || v.faults.isBroken("pipelines") {
		return
	}
	for i, source := range v.config.Sources {
		if path := index("sources", i); source.Name != "" && len(v.config.Takers(source.Name)) == 0 {
			v.warn(path, "no pipeline takes the source %s: it is not watched", v.shown(path+".name"))
		}
	}
	for i, sink := range v.config.Sinks {
		delivers := func(p Pipeline) bool { return p.Sink == sink.Name || p.DeadLetter == sink.Name }
		if path := index("sinks", i); sink.Name != "" && !slices.ContainsFunc(v.config.Pipelines, delivers) {
			v.warn(path, "no pipeline delivers to the sink %s: it is not opened", v.shown(path+".name"))
		}
	}
}
