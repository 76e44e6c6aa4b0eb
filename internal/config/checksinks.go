package config

import "strings"

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
	sources, sinks := map[string]bool{}, map[string]bool{}
	for _, p := range v.config.Pipelines {
		for _, source := range p.Sources {
			sources[source] = true
		}
		sinks[p.Sink], sinks[p.DeadLetter] = true, true
	}
	for i, source := range v.config.Sources {
		if path := index("sources", i); source.Name != "" && !sources[source.Name] {
			v.warn(path, "no pipeline takes the source %s: it is not watched", v.shown(path+".name"))
		}
	}
	for i, sink := range v.config.Sinks {
		if path := index("sinks", i); sink.Name != "" && !sinks[sink.Name] {
			v.warn(path, "no pipeline delivers to the sink %s: it is not opened", v.shown(path+".name"))
		}
	}
}
