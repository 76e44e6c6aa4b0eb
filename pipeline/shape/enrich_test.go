package shape

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// table is an Enricher with the metadata that a test gives it, by name.
type table struct {
	mu      sync.Mutex
	known   map[string]string
	lookups []delta.Reference

	namespace string // of the last lookup
}

func (e *table) Lookup(namespace string, ref delta.Reference) (json.RawMessage, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lookups = append(e.lookups, ref)
	e.namespace = namespace
	metadata, ok := e.known[ref.Name]
	return json.RawMessage(metadata), ok
}

var (
	coreEvents = schema.GroupVersionResource{Version: "v1", Resource: "events"}
	newEvents  = schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"}
)

const webMetadata = `{"labels":{"app":"web"},"annotations":{"a":"\u003c}"},"ownerReferences":[{"kind":"ReplicaSet","name":"web-1"}]}`

func TestEnrich(t *testing.T) {
	const full = `{"kind":"Pod","namespace":"shop","name":"web","uid":"u-1","apiVersion":"v1","fieldPath":"spec.containers{\"c}\"}"}`
	for _, c := range []struct {
		name         string
		resource     schema.GroupVersionResource
		fields, want string
		hits, misses float64
	}{
		{
			"hit", coreEvents, `"count":1,"involvedObject":` + full + `,"reason":"Started"`,
			`"count":1,"involvedObject":` + strings.TrimSuffix(full, "}") + `,` + webMetadata[1:] + `,"reason":"Started"`, 1, 0,
		},
		{
			"regarding", newEvents, `"regarding": ` + full + ` ,"involvedObject":{"name":"web"}`,
			`"regarding": ` + strings.TrimSuffix(full, "}") + `,` + webMetadata[1:] + ` ,"involvedObject":{"name":"web"}`, 1, 0,
		},
		{"miss", coreEvents, `"involvedObject":{"name":"db"}`, `"involvedObject":{"name":"db","metadataKnown":false}`, 0, 1},
		{"nothing to add", coreEvents, `"involvedObject":{"name":"bare"}`, `"involvedObject":{"name":"bare"}`, 1, 0},
		{"empty reference", coreEvents, `"involvedObject":{ }`, `"involvedObject":{ "metadataKnown":false}`, 0, 1},
		{"odd types", coreEvents, `"involvedObject":{"name":5,"uid":null}`, `"involvedObject":{"name":5,"uid":null,"metadataKnown":false}`, 0, 1},
		{"no reference", coreEvents, `"x":{"involvedObject":{"name":"web"}}`, `"x":{"involvedObject":{"name":"web"}}`, 0, 0},
		{"null", coreEvents, `"involvedObject":null`, `"involvedObject":null`, 0, 0},
		{"no Event", pods, `"involvedObject":{"name":"web"}`, `"involvedObject":{"name":"web"}`, 0, 0},
		{
			"Event of another group",
			schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "events"},
			`"involvedObject":{"name":"web"}`, `"involvedObject":{"name":"web"}`, 0, 0,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			enricher := &table{known: map[string]string{"web": webMetadata, "bare": "{}"}}
			p := start(t, func(o *Options) { o.Enricher, o.Format = enricher, FormatRaw })
			p.take(t, &delta.Delta{Type: delta.Added, Resource: c.resource, Object: version(t, 7, c.fields)}, false)
			want, body := string(version(t, 7, c.want).JSON()), p.sent[0].Body
			if string(body) != want || !json.Valid(body) {
				t.Errorf("got  %s\nwant %s", body, want)
			}
			if hits, misses := count(t, p.metrics.Hits), count(t, p.metrics.Misses); hits != c.hits || misses != c.misses {
				t.Errorf("%v hits and %v misses, want %v and %v", hits, misses, c.hits, c.misses)
			}
			if c.name == "hit" {
				if want := (delta.Reference{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web", UID: "u-1"}); enricher.lookups[0] != want {
					t.Errorf("looked up %+v, want %+v", enricher.lookups[0], want)
				}
				if enricher.namespace != "shop" {
					t.Errorf("looked up for an Event in %q, want shop", enricher.namespace)
				}
			}
		})
	}
}

// TestEnrichDifference: both versions get the same metadata; so no filter for changes and no difference takes it for a
// change of the Event.
func TestEnrichDifference(t *testing.T) {
	path, err := fieldpath.Parse("involvedObject")
	if err != nil {
		t.Fatal(err)
	}
	event := func(resourceVersion, n int) *delta.Object {
		return version(t, resourceVersion, fmt.Sprintf(`"involvedObject":{"name":"web"},"count":%d`, n))
	}
	for _, known := range []bool{true, false} {
		enricher := &table{}
		if known {
			enricher.known = map[string]string{"web": webMetadata}
		}
		p := start(t, func(o *Options) {
			o.Enricher, o.Format, o.Diff = enricher, FormatJSON, DiffJSONPatch
		})
		d := &delta.Delta{Type: delta.Modified, Resource: coreEvents, Object: event(7, 2), Old: event(6, 1)}
		p.take(t, d, true)
		if body := string(p.sent[0].Body); !strings.Contains(body, `"/count"`) || strings.Contains(body, `"/involvedObject`) ||
			strings.Contains(body, `"app":"web"`) != known {
			t.Errorf("known %v: %s", known, body)
		}
		if len(enricher.lookups) != 1 {
			t.Errorf("looked up %d times, want once", len(enricher.lookups))
		}
		if pass, err := (ChangedFilter{path}).Pass(&Change{shaper: p.Shaper, observed: d}); pass || err != nil {
			t.Errorf("the metadata counts as a change: %v, %v", pass, err)
		}
		if strings.Contains(string(d.Object.JSON()), "app") {
			t.Error("other pipelines see it")
		}
	}
}

// TestEnrichOtherReference: a version that was about another object does not get this one's metadata.
func TestEnrichOtherReference(t *testing.T) {
	p := start(t, func(o *Options) { o.Enricher = &table{known: map[string]string{"web": webMetadata}} })
	d := &delta.Delta{Type: delta.Modified, Resource: coreEvents, Object: version(t, 7, `"involvedObject":{"name":"web"}`)}
	object, old := p.enrich(d, d.Object, version(t, 6, `"involvedObject":{"name":"db"}`))
	if !strings.Contains(string(object.JSON()), `"app":"web"`) || !strings.Contains(string(old.JSON()), `{"name":"db","metadataKnown":false}`) {
		t.Errorf("got %s after %s", object.JSON(), old.JSON())
	}
}

// Filters and transforms see what was added.
func TestEnrichIsSeen(t *testing.T) {
	value, err := expr.Compile(`object.involvedObject.ownerReferences[0].name`, expr.Value)
	if err != nil {
		t.Fatal(err)
	}
	owner, err := fieldpath.Parse("owner")
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, func(o *Options) {
		o.Enricher, o.Format = &table{known: map[string]string{"web": webMetadata}}, FormatRaw
		o.Filters = []Filter{exprFilter(t, `object.involvedObject.labels.app == "web"`, OnErrorDrop)}
		o.Transforms = []Transform{SetTransform{{Path: owner, Value: value}}}
	})
	for _, name := range []string{"web", "db"} {
		p.take(t, &delta.Delta{Type: delta.Added, Resource: coreEvents, Object: version(t, 7, fmt.Sprintf(`"involvedObject":{"name":%q}`, name))}, false)
	}
	if len(p.sent) != 1 || !strings.Contains(string(p.sent[0].Body), `"owner":"web-1"`) {
		t.Errorf("got %v, want the Event about web with its owner", p.sent)
	}
}

// An Event of which no more than its identity is known has nothing to add to.
func TestEnrichIdentity(t *testing.T) {
	enricher := &table{}
	p := start(t, func(o *Options) { o.Enricher = enricher })
	p.take(t, &delta.Delta{
		Type: delta.Deleted, Resource: coreEvents, Object: version(t, 7, `"count":1`).Identity(), Inferred: true, FinalStateUnknown: true,
	}, true)
	if len(enricher.lookups) > 0 || len(p.sent) != 1 {
		t.Errorf("looked up %v, sent %+v", enricher.lookups, p.sent)
	}
}

func BenchmarkEnrich(b *testing.B) {
	p := start(b, func(o *Options) { o.Enricher = &table{known: map[string]string{"web": webMetadata}} })
	object := version(b, 7, `"involvedObject":{"kind":"Pod","namespace":"shop","name":"web","uid":"u-1","apiVersion":"v1"},"message":"`+strings.Repeat("x", 900)+`"`)
	d := &delta.Delta{Type: delta.Added, Resource: coreEvents, Object: object}
	b.ReportAllocs()
	for b.Loop() {
		p.enrich(d, object, nil)
	}
}
