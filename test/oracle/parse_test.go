package oracle_test

import (
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/oracle"
)

const (
	data = `"type":"MODIFIED","resource":{"group":"apps","version":"v1","resource":"deployments"},` +
		`"object":{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"4f0c","resourceVersion":"235"}},` +
		`"inferred":true`
	envelope = `"time":"2026-11-20T23:12:03.123456Z","datacontenttype":"application/json","pipeline":"p",`
	event    = `{"specversion":"1.0","id":"eu/1/4f0c/235/MODIFIED","source":"/clusters/eu",` + envelope +
		`"type":"dev.kubeferry.resource.modified","subject":"/apis/apps/v1/namespaces/shop/deployments/web",` +
		`"partitionkey":"prod-eu-1/apis/apps/v1/namespaces/shop/deployments/web",` +
		`"sequence":"00000000000000000235","data":{` + data + `}}`
	plain = `{"id":"eu/1/4f0c/235/MODIFIED","cluster":"eu/1","subject":"/apis/apps/v1/namespaces/shop/deployments/web",` +
		`"time":"2026-11-20T23:12:03.123456Z","pipeline":"p","sequence":"00000000000000000235",` + data + `}`
	gap = `{"specversion":"1.0","id":"eu/abc/10-20/GAP","source":"/clusters/eu","type":"dev.kubeferry.gap",` + envelope +
		`"subject":"/api/v1/namespaces/shop/pods","partitionkey":"prod-eu-1/api/v1/namespaces/shop/pods",` +
		`"data":{"type":"GAP","namespace":"shop","from":"00000000000000000010","to":"00000000000000000020","reason":"lost","resource":{"group":"","version":"v1","resource":"pods"}}}`
)

func TestParse(t *testing.T) {
	modified := oracle.Record{
		ID: "eu/1/4f0c/235/MODIFIED", Type: oracle.Modified, Namespace: "shop", Name: "web", UID: "4f0c",
		ResourceVersion: "235", Inferred: true, Sequence: 235,
		Resource: schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"},
	}
	renewed := modified
	renewed.ID, renewed.Sequence = "eu/1+2/4f0c/235/MODIFIED", 2_00000000000000235
	gone := modified
	gone.ID, gone.Type, gone.Sequence = "eu/1/4f0c/235/DELETED", oracle.Deleted, 240
	tests := []struct {
		name  string
		parse func([]byte) (oracle.Record, error)
		body  string
		want  oracle.Record
	}{
		{"CloudEvent", oracle.ParseCloudEvent, event, modified},
		{"inferred DELETED", oracle.ParseCloudEvent, strings.NewReplacer(
			"MODIFIED", "DELETED", "resource.modified", "resource.deleted", "000235", "000240").Replace(event), gone},
		{"JSON", oracle.ParseJSON, plain, modified},
		{"a history that went back", oracle.ParseJSON, strings.NewReplacer("eu/1/4f0c", "eu/1+2/4f0c", `"000`, `"002`).Replace(plain), renewed},
		{"gap", oracle.ParseCloudEvent, gap, oracle.Record{
			ID: "eu/abc/10-20/GAP", Type: oracle.Gap, Namespace: "shop", From: "00000000000000000010", To: "00000000000000000020", Reason: "lost",
			Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"},
		}},
		{
			"cluster-scoped", oracle.ParseJSON,
			`{"id":"eu/u/7/ADDED","cluster":"eu","subject":"/api/v1/namespaces/shop","time":"2026-11-20T23:12:03Z","pipeline":"p",` +
				`"sequence":"00000000000000000007","type":"ADDED","snapshot":true,` +
				`"resource":{"group":"","version":"v1","resource":"namespaces"},"object":{"metadata":{"name":"shop","uid":"u","resourceVersion":"7"}}}`,
			oracle.Record{
				ID: "eu/u/7/ADDED", Type: oracle.Added, Name: "shop", UID: "u", ResourceVersion: "7", Snapshot: true, Sequence: 7,
				Resource: schema.GroupVersionResource{Version: "v1", Resource: "namespaces"},
			},
		},
	}
	tests = append(tests, tests[0])
	raw := &tests[len(tests)-1]
	raw.name, raw.want.Name, raw.want.Inferred = "raw", "a b%", false
	raw.body = `{"metadata":{"name":"a b%","namespace":"shop","uid":"4f0c","resourceVersion":"235"}}`
	raw.parse = func(body []byte) (oracle.Record, error) {
		headers := map[string]string{
			"kubeferry-id": modified.ID, "kubeferry-type": "MODIFIED", "kubeferry-resource": "apps/v1/deployments",
			"kubeferry-subject":  "/apis/apps/v1/namespaces/shop/deployments/a%20b%25",
			"kubeferry-sequence": "00000000000000000235",
		}
		return oracle.ParseRaw(func(name string) string { return headers[name] }, body)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.parse([]byte(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParseFindsContradictions(t *testing.T) {
	tests := []struct{ name, old, new string }{
		{"not JSON", "{", "<"},
		{"short id", "eu/1/4f0c/235/MODIFIED", "235/MODIFIED"},
		{"other type in the id", "235/MODIFIED", "235/ADDED"},
		{"other CloudEvent type", "resource.modified", "resource.added"},
		{"other uid in the object", `"uid":"4f0c"`, `"uid":"ffff"`},
		{"other version in the object", `"resourceVersion":"235"`, `"resourceVersion":"236"`},
		{"other name in the subject", "deployments/web", "deployments/api"},
		{"other resource in the subject", "/deployments/", "/pods/"},
		{"older sequence", `"00000000000000000235"`, `"00000000000000000234"`},
		{"short sequence", `"00000000000000000235"`, `"235"`},
		{"other specversion", `"1.0"`, `"0.3"`},
		{"a time that is none", "T23:12", " 23:12"},
		{"a member that the schema does not have", `"inferred":true`, `"inferred":true,"supposed":true`},
		{"an attribute that the schema does not have", `"source"`, `"origin":"x","source"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			body := strings.Replace(event, tt.old, tt.new, 1)
			if body == event {
				t.Fatalf("%q is not in the body", tt.old)
			}
			if r, err := oracle.ParseCloudEvent([]byte(body)); err == nil {
				t.Errorf("got %+v, want an error", r)
			}
		})
	}
}
