package delta

import (
	"fmt"
	"testing"
	"time"
)

// TestChangedBy: the managers of the newest entries, and none where Kubernetes does not say who made the change.
func TestChangedBy(t *testing.T) {
	const early, late = `"time":"2026-11-21T00:12:03Z"`, `"time":"2026-11-21T00:12:04Z"`
	entry := func(manager, more string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:time":{"manager":"x"}},"manager":%q,"operation":"Update",%s}`, manager, more)
	}
	said := func(manager, subresource, second string) string {
		return fmt.Sprintf(`{"manager":%q,"operation":"Update","subresource":%q,"time":"2026-11-21T00:12:%sZ"}`, manager, subresource, second)
	}
	const scaled = `[{"manager":"s","operation":"Update","subresource":"scale"}]`
	scale := `{"apiVersion":"apps/v1","fieldsV1":{"f:spec":{"f:replicas":{}}},"manager":"s","operation":"Update","subresource":"scale"}`
	controller := entry("c", late+`,"subresource":"status"`)
	at := time.Date(2026, 11, 21, 0, 12, 4, 500, time.UTC)
	for name, c := range map[string]struct {
		metadata string
		delta    Delta
		want     string
	}{
		"one":                {`"managedFields":[` + entry("a", early) + `]`, Delta{Type: Added}, `[` + said("a", "", "03") + `]`},
		"newest":             {`"managedFields":[` + entry("a", early) + `,` + entry("b", late+`,"subresource":"status"`) + `]`, Delta{Type: Modified}, `[` + said("b", "status", "04") + `]`},
		"newest is first":    {`"managedFields":[` + entry("b", late) + `,` + entry("a", early) + `]`, Delta{Type: Modified}, `[` + said("b", "", "04") + `]`},
		"two in a second":    {`"managedFields":[` + entry("a", late) + `,` + entry("c", early) + `,` + entry("b", late) + `]`, Delta{Type: Modified}, `[` + said("a", "", "04") + `,` + said("b", "", "04") + `]`},
		"deleted":            {`"managedFields":[` + entry("a", late) + `]`, Delta{Type: Deleted}, ""},
		"none":               {`"labels":{}`, Delta{Type: Modified}, ""},
		"empty":              {`"managedFields":[]`, Delta{Type: Modified}, ""},
		"null":               {`"managedFields":null`, Delta{Type: Modified}, ""},
		"without a time":     {`"managedFields":[` + entry("a", `"x":1`) + `]`, Delta{Type: Modified}, ""},
		"odd":                {`"managedFields":[1,{"manager":1,"operation":null,` + late + `}]`, Delta{Type: Modified}, `[{"manager":"","operation":"","subresource":"","time":"2026-11-21T00:12:04Z"}]`},
		"escaped":            {`"managedFields":[` + entry(`a"b\c`, late) + `]`, Delta{Type: Modified}, `[` + said(`a"b\c`, "", "04") + `]`},
		"old":                {`"managedFields":[` + entry("a", late) + `]`, Delta{Type: Modified, Observed: at.Add(20 * time.Minute)}, ""},
		"old and inferred":   {`"managedFields":[` + entry("a", late) + `]`, Delta{Type: Modified, Inferred: true, Observed: at.Add(20 * time.Minute)}, `[` + said("a", "", "04") + `]`},
		"old and in a list":  {`"managedFields":[` + entry("a", late) + `]`, Delta{Type: Added, Snapshot: true, Observed: at.Add(20 * time.Hour)}, `[` + said("a", "", "04") + `]`},
		"deletion begins":    {`"deletionGracePeriodSeconds":30,"deletionTimestamp":"2026-11-21T00:12:40Z","managedFields":[` + entry("a", late) + `]`, Delta{Type: Modified, Observed: at}, ""},
		"while it is ending": {`"deletionGracePeriodSeconds":30,"deletionTimestamp":"2026-11-21T00:12:33Z","managedFields":[` + entry("a", late) + `]`, Delta{Type: Modified, Observed: at}, `[` + said("a", "", "04") + `]`},
		"scaled":             {`"generation":3,"managedFields":[` + scale + `,` + entry("a", early) + `,` + controller + `]`, Delta{Type: Modified}, scaled},
		"scaled long after":  {`"generation":3,"managedFields":[` + scale + `,` + controller + `]`, Delta{Type: Modified, Observed: at.Add(20 * time.Minute)}, scaled},
		"status follows":     {`"generation":2,"managedFields":[` + scale + `,` + entry("a", early) + `,` + controller + `]`, Delta{Type: Modified}, `[` + said("c", "status", "04") + `]`},
		"edited after it":    {`"generation":3,"managedFields":[` + scale + `,` + controller + `,` + entry("a", late) + `]`, Delta{Type: Modified}, `[` + said("c", "status", "04") + `,` + said("a", "", "04") + `]`},
		"deleted after it":   {`"deletionTimestamp":"2026-11-21T00:12:40Z","generation":3,"managedFields":[` + scale + `,` + controller + `]`, Delta{Type: Modified, Observed: at}, ""},
		"another without":    {`"generation":3,"managedFields":[` + entry("x", `"subresource":"other"`) + `,` + controller + `]`, Delta{Type: Modified}, `[` + said("c", "status", "04") + `]`},
	} {
		raw := []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a",` + c.metadata + `,"uid":"u"},"status":{"observedGeneration":2}}`)
		for _, keep := range []bool{true, false} {
			object, err := CopyObject(raw, keep)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			d := c.delta
			d.Object = object
			if got := string(d.ChangedBy()); got != c.want {
				t.Errorf("%s: got %s, want %s", name, got, c.want)
			}
			d.Object = object.WithoutManagedFields().WithJSON([]byte(`{}`))
			if got := string(d.ChangedBy()); got != c.want {
				t.Errorf("%s: of what a pipeline made of it: got %s, want %s", name, got, c.want)
			}
			if n := len(Managers(d.ChangedBy())); n > 2 || n == 0 && c.want != "" {
				t.Errorf("%s: %d managers", name, n)
			}
		}
	}
}
