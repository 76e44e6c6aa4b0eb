package shape

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

var update = flag.Bool("update", false, "write the golden files")

// encoders are the formats and profiles, each with the name of its golden file.
func encoders() map[string]Encoder {
	made := map[string]Encoder{}
	for name, options := range map[string]Options{
		"cloudevents":                {Format: FormatCloudEvents},
		"cloudevents-knative":        {Format: FormatCloudEvents, Profile: ProfileKnative},
		"cloudevents-binary":         {Format: FormatCloudEventsBinary},
		"cloudevents-binary-knative": {Format: FormatCloudEventsBinary, Profile: ProfileKnative},
		"json":                       {Format: FormatJSON},
		"raw":                        {Format: FormatRaw},
	} {
		options.Name, options.Cluster = "audit", "prod-eu-1"
		made[name] = NewEncoder(options)
	}
	return made
}

type kind struct {
	name  string
	entry *delta.Entry
}

// kinds are all that a record can be of.
func kinds(t *testing.T) []kind {
	t.Helper()
	observed := time.Date(2026, 11, 21, 0, 12, 3, 123456789, time.FixedZone("", 3600))
	deployments := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	web := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"4f0c1e10","resourceVersion":"%s","annotations":{"note":"\"ä\" <b>"}},"spec":{"replicas":%d}}`
	made := func(change delta.Delta, object string, args ...any) *delta.Entry {
		parsed, err := delta.NewObject(fmt.Appendf(nil, object, args...))
		if err != nil {
			t.Fatal(err)
		}
		change.Object, change.Observed = parsed, observed
		if change.Resource.Resource == "" {
			change.Resource = deployments
		}
		change.Restored = 2
		if version, err := strconv.ParseUint(parsed.ResourceVersion(), 10, 64); err == nil && change.Sequence == 0 {
			change.Sequence = 1883120040148992 + version
		}
		return &delta.Entry{Delta: &change}
	}
	return []kind{
		{"added", made(delta.Delta{Type: delta.Added}, web, "235", 1)},
		{"snapshot", made(delta.Delta{Type: delta.Added, Snapshot: true, SnapshotSequence: 239}, web, "235", 1)},
		{"modified while a snapshot runs", made(delta.Delta{Type: delta.Modified, SnapshotSequence: 239}, web, "240", 1)},
		{"modified", made(delta.Delta{Type: delta.Modified}, web, "236", 3)},
		{"old object", made(delta.Delta{Type: delta.Modified, Difference: &delta.Difference{
			Known: true, OldResourceVersion: "235", OldObject: fmt.Appendf(nil, web, "235", 1),
		}}, web, "236", 3)},
		{"JSON patch", made(delta.Delta{Type: delta.Modified, Difference: &delta.Difference{
			Known: true, OldResourceVersion: "235", Patch: []byte(`[{"op":"replace","path":"/spec/replicas","value":3}]`),
		}}, web, "236", 3)},
		{"merge patch", made(delta.Delta{Type: delta.Modified, Difference: &delta.Difference{
			Known: true, OldResourceVersion: "235", Patch: []byte(`{"spec":{"replicas":3}}`),
		}}, web, "236", 3)},
		{"old unknown", made(delta.Delta{Type: delta.Modified, Difference: &delta.Difference{}}, web, "236", 3)},
		{"deleted", made(delta.Delta{Type: delta.Deleted}, web, "240", 3)},
		{
			"inferred, final state unknown",
			made(delta.Delta{Type: delta.Deleted, Inferred: true, FinalStateUnknown: true}, web, "240", 3),
		},
		{
			"inferred, gone by a later version",
			made(delta.Delta{Type: delta.Deleted, Inferred: true, FinalStateUnknown: true, Sequence: 1883120040149228}, web, "240", 3),
		},
		{
			"core group, cluster-scoped, odd resource version",
			made(delta.Delta{Type: delta.Added, Resource: schema.GroupVersionResource{Version: "v1", Resource: "nodes"}},
				`{"apiVersion":"v1","kind":"Node","metadata":{"name":"n-1","uid":"9c0c","resourceVersion":"0x7"}}`),
		},
		{"gap", &delta.Entry{Gap: &delta.Gap{
			Watch: "8d3f", Resource: deployments, Namespace: "shop",
			From: "00001883120040149227", To: "00001883120040149892", Reason: delta.GapRefused, Observed: observed,
		}}},
		{"snapshot completed", &delta.Entry{Mark: &delta.Mark{
			Watch: "8d3f", Resource: deployments, Namespace: "shop", SnapshotSequence: 239, Count: 3, Observed: observed,
		}}},
		{"snapshot not complete", &delta.Entry{Mark: &delta.Mark{
			Watch: "8d3f", Resource: deployments, SnapshotSequence: 239, Incomplete: true, Observed: observed,
		}}},
		{"snapshot without one object", &delta.Entry{Mark: &delta.Mark{
			Watch: "8d3f", Resource: deployments, SnapshotSequence: 239, Count: 2,
			Except: []string{"/apis/apps/v1/namespaces/shop/deployments/\u00e4"}, Observed: observed,
		}}},
	}
}

// TestGolden compares every format of every kind of delta with a file.
func TestGolden(t *testing.T) {
	for name, encoder := range encoders() {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			for _, kind := range kinds(t) {
				record, _, _ := encoder.Encode(nil, kind.entry)
				fmt.Fprintf(&b, "# %s\n%s\n", kind.name, show(&record))
			}
			golden := filepath.Join("testdata", "format", name+".golden")
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("got:\n%s\nwant:\n%s", b.String(), want)
			}
		})
	}
}

func show(r *sinks.Record) string {
	var b strings.Builder
	fmt.Fprintf(&b, "id: %s\ndedup: %s\nkey: %s\ntype: %s\n", r.ID, r.DedupID, r.Key, r.ContentType)
	fmt.Fprintf(&b, "array: %s\n", r.BatchContentType)
	for prefix, texts := range map[string]map[string]string{"header": r.Headers, "attribute": r.Attributes} {
		for _, name := range slices.Sorted(maps.Keys(texts)) {
			fmt.Fprintf(&b, "%s %s: %s\n", prefix, name, texts[name])
		}
	}
	fmt.Fprintf(&b, "%s\n", r.Body)
	return b.String()
}

// TestSchema holds every event against the schema of the CloudEvents project, and against one of ours that is stricter;
// those in binary mode too: a sink without headers writes them so.
func TestSchema(t *testing.T) {
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	var schemas []*jsonschema.Schema
	for _, file := range []string{"cloudevents-project.schema.json", "cloudevents.schema.json"} {
		schema, err := compiler.Compile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		wrong := map[string]any{"specversion": "1.0", "id": "1", "source": "/", "type": "t", "data": map[string]any{}, "time": "yesterday"}
		if schema.Validate(wrong) == nil {
			t.Errorf("%s lets a wrong time pass", file)
		}
		schemas = append(schemas, schema)
	}
	for name, encoder := range encoders() {
		for _, kind := range kinds(t) {
			record, _, _ := encoder.Encode(nil, kind.entry)
			if bytes.ContainsRune(record.Body, '\n') || !json.Valid(record.Body) {
				t.Errorf("%s, %s: not one line of JSON: %s", name, kind.name, record.Body)
			}
			if !strings.HasPrefix(name, "cloudevents") {
				continue
			}
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(record.Structured()))
			if err != nil {
				t.Fatal(err)
			}
			for _, schema := range schemas {
				if err := schema.Validate(value); err != nil {
					t.Errorf("%s, %s: %v", name, kind.name, err)
				}
			}
		}
	}
}

// TestModesAgree compares the two modes of an event: the same attributes, and the same data.
func TestModesAgree(t *testing.T) {
	made := encoders()
	for _, profile := range []string{"", "-knative"} {
		structured, binary := made["cloudevents"+profile], made["cloudevents-binary"+profile]
		for _, kind := range kinds(t) {
			one, _, _ := structured.Encode(nil, kind.entry)
			two, _, _ := binary.Encode(nil, kind.entry)
			var event map[string]json.RawMessage
			if err := json.Unmarshal(one.Body, &event); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(event["data"], two.Body) {
				t.Errorf("%s%s: got data %s and %s", kind.name, profile, event["data"], two.Body)
			}
			delete(event, "data")
			got := maps.Clone(two.Attributes)
			got["datacontenttype"] = two.ContentType
			if len(got) != len(event) {
				t.Errorf("%s%s: got attributes %v, want those of %s", kind.name, profile, got, one.Body)
			}
			for name, raw := range event {
				var value any
				if err := json.Unmarshal(raw, &value); err != nil {
					t.Fatal(err)
				}
				if got[name] != fmt.Sprint(value) {
					t.Errorf("%s%s: got attribute %s %q, want %v", kind.name, profile, name, got[name], value)
				}
			}
			if one.BatchContentType == "" || two.BatchContentType != "" {
				t.Errorf("%s%s: got content types of arrays %q, %q", kind.name, profile, one.BatchContentType, two.BatchContentType)
			}
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal(a, &x); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &y); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

func TestTimeHasSixDigits(t *testing.T) {
	for _, nanoseconds := range []int64{0, 1, 999, 1000, 120_000_000, 999_999_999, 1_767_225_599_999_999_999, -1} {
		at := time.Unix(1_790_000_000, nanoseconds).In(time.FixedZone("elsewhere", 7200))
		if got, want := formatTime(at), at.UTC().Format("2006-01-02T15:04:05.000000Z07:00"); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
