package app

import (
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

// A change that a killed run sent may not pass any more once its filters see another object: as after an edit of these, a gap stands for it.
func TestFilterDigest(t *testing.T) {
	filters := []config.Filter{{Expr: `object.data.a == "b"`}}
	seen := map[string]string{}
	for name, p := range map[string]config.Pipeline{
		"none":              {RedactSecrets: true},
		"the default":       {RedactSecrets: true, Filters: filters},
		"secrets":           {Filters: filters},
		"managedFields":     {RedactSecrets: true, KeepManagedFields: true, Filters: filters},
		"a limit":           {RedactSecrets: true, Filters: []config.Filter{{Limit: &config.Limit{Per: "type", Count: 1, Every: time.Minute}}}},
		"another limit":     {RedactSecrets: true, Filters: []config.Filter{{Limit: &config.Limit{Per: "type", Count: 2, Every: time.Minute}}}},
		"anything":          {RedactSecrets: true, Filters: []config.Filter{{Changed: []config.ChangedPath{{}}}}},
		"nothing":           {RedactSecrets: true, Filters: []config.Filter{{}}},
		"with their object": {RedactSecrets: true, Enrich: config.EnrichInvolvedObject, Filters: filters},
	} {
		digest := filterDigest(&p)
		if other, has := seen[digest]; has {
			t.Errorf("%s has the digest of %s", name, other)
		}
		seen[digest] = name
	}
	unfiltered := config.Pipeline{}
	if seen[filterDigest(&unfiltered)] != "none" {
		t.Error("without filters it depends on what none see")
	}
}
