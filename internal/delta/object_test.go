package delta_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// pod is about what a scheduled Pod of a Deployment looks like, managedFields included.
func pod(t testing.TB) []byte {
	t.Helper()
	container := `{"name":"web","image":"registry.example/web:1.2.3","env":[` +
		strings.Repeat(`{"name":"KEY","value":"a value with \"quotes\" and \u00e9scapes"},`, 20) +
		`{"name":"LAST","value":"1"}],"resources":{"limits":{"cpu":"500m"}},"ready":true,"restartCount":0,"x":-1.5e-3,"y":null}`
	managed := `[{"manager":"kubelet","operation":"Update","fieldsV1":{` +
		strings.Repeat(`"f:metadata":{"f:labels":{".":{},"f:app":{}}},"k:{\"type\":\"Ready\"}":{".":{}},`, 30) + `"f:z":{}}}]`
	raw := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0","namespace":"shop","uid":"4f0c1e10-1267-466d-aa8d-59513e0e4c45",` +
		`"resourceVersion":"235","labels":{"app":"web"},"managedFields":` + managed + `},"spec":{"containers":[` + container + `]},"status":{"phase":"Running"}}` + "\n"
	if !json.Valid([]byte(raw)) {
		t.Fatal("the test's own pod is not JSON")
	}
	return []byte(raw)
}

func TestObjectMetadata(t *testing.T) {
	object, err := delta.NewObject(pod(t))
	if err != nil {
		t.Fatal(err)
	}
	got := []string{object.APIVersion(), object.Kind(), object.Namespace(), object.Name(), string(object.UID()), object.ResourceVersion()}
	want := []string{"v1", "Pod", "shop", "web-0", "4f0c1e10-1267-466d-aa8d-59513e0e4c45", "235"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// The names of Roles have no bound.
func TestLongNames(t *testing.T) {
	named := func(name string) string {
		object, err := delta.NewObject(fmt.Appendf(nil, `{"metadata":{"name":%q}}`, name))
		if err != nil {
			t.Fatal(err)
		}
		return object.Name()
	}
	for _, n := range []int{253, 1024} {
		if name := strings.Repeat("ä", n/2); named(name) != name {
			t.Errorf("a name of %d bytes is another one", n)
		}
	}
	long := strings.Repeat("xä", 30_000)
	a, b := named(long+"a"), named(long+"b")
	if len(a) > 1024 || !utf8.ValidString(a) || !strings.HasPrefix(a, long[:900]) || a == b || a != named(long+"a") {
		t.Errorf("got %q and %q", a, b)
	}
}

// Keys that are not looked at are not decoded: those of managedFields hold escapes.
func TestObjectAllocations(t *testing.T) {
	raw := pod(t)
	allocations := testing.AllocsPerRun(100, func() {
		if _, err := delta.NewObject(raw); err != nil {
			t.Fatal(err)
		}
	})
	if allocations > 20 {
		t.Errorf("got %v allocations", allocations)
	}
}

func TestNewIdentity(t *testing.T) {
	object := delta.NewIdentity(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, "shop", "web", "u-1", "7")
	parsed, err := delta.NewObject(object.JSON())
	if err != nil {
		t.Fatal(err)
	}
	want := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"u-1","resourceVersion":"7"}}`
	if string(object.JSON()) != want {
		t.Errorf("got %s, want %s", object.JSON(), want)
	}
	if parsed.Name() != object.Name() || parsed.UID() != object.UID() || parsed.Kind() != object.Kind() {
		t.Errorf("the fields differ from those of the JSON")
	}
}

func TestWithoutManagedFields(t *testing.T) {
	for name, test := range map[string]struct{ in, want string }{
		"last":      {`{"metadata":{"name":"a","managedFields":[{}]}}`, `{"metadata":{"name":"a"}}`},
		"first":     {`{"metadata":{"managedFields":[{}],"name":"a"}}`, `{"metadata":{"name":"a"}}`},
		"middle":    {`{"metadata":{"uid":"u","managedFields":[{}],"name":"a"}}`, `{"metadata":{"uid":"u","name":"a"}}`},
		"only":      {`{"metadata":{"managedFields":[{}]}}`, `{"metadata":{}}`},
		"blanks":    {`{"metadata":{ "name":"a" , "managedFields" : [ {} ] }}`, `{"metadata":{ "name":"a"  }}`},
		"none":      {`{"metadata":{"name":"a"},"managedFields":1}`, `{"metadata":{"name":"a"},"managedFields":1}`},
		"elsewhere": {`{"spec":{"metadata":{"managedFields":[]}}}`, `{"spec":{"metadata":{"managedFields":[]}}}`},
		"escaped":   {`{"metadata":{"name":"a","managed\u0046ields":[{}]}}`, `{"metadata":{"name":"a"}}`},
		"null":      {`{"metadata":{"name":"a","managedFields":null}}`, `{"metadata":{"name":"a"}}`},
	} {
		t.Run(name, func(t *testing.T) {
			object, err := delta.NewObject([]byte(test.in))
			if err != nil {
				t.Fatal(err)
			}
			if got := string(object.WithoutManagedFields().JSON()); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			if got := string(object.JSON()); got != test.in {
				t.Errorf("the object itself changed to %s", got)
			}
		})
	}
}

func TestMalformed(t *testing.T) {
	for _, text := range []string{
		`{"a":01}`, `{"a":1.}`, `{"a":.5}`, `{"a":+1}`, `{"a":1e}`, `{"a":tru}`, `{"a":"\x"}`, `{"a":"\u12g4"}`, "{\"a\":\"\n\"}",
		`{"a":1,}`, `{"a":[1,]}`, `{,}`, `{"a"}`, `{a:1}`, `[]`, `null`, `"x"`, `{}{}`, `{"a":1} x`, `{"metadata":{"managedFields":1,"managedFields":2}}`,
	} {
		if _, err := delta.NewObject([]byte(text)); err == nil {
			t.Errorf("%s: got error %v, want a syntax error", text, err)
		}
	}
	whole := strings.TrimSpace(string(pod(t)))
	for cut := range len(whole) {
		if _, err := delta.NewObject([]byte(whole[:cut])); err == nil {
			t.Fatalf("cut at %d (…%s): got no error", cut, whole[max(0, cut-20):cut])
		}
	}
}

// FuzzObject holds the scanner against encoding/json: the same texts are valid, the same fields are found, and
// cutting managedFields out of the bytes is the same as decoding, deleting and encoding.
func FuzzObject(f *testing.F) {
	f.Add(pod(f))
	f.Add([]byte(`{"metadata":{"managedFields":[1,{"a":[]}],"name":"\ud83d\ude00"},"x":[[],{},-0.0e+1,"\\"]}`))
	f.Add([]byte(`{"metadata":{"name":"a"},"metadata":{"uid":"b","managedFields":0}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var model map[string]any
		modelErr := json.Unmarshal(data, &model)
		object, err := delta.NewObject(data)
		if err != nil {
			if modelErr == nil && model != nil && !strings.Contains(err.Error(), "occurs twice") {
				t.Fatalf("refused %q: %v", data, err)
			}
			return
		}
		if modelErr != nil {
			t.Fatalf("accepted %q, encoding/json says %v", data, modelErr)
		}
		if hasDuplicates(data) {
			return // which of two equal members counts is not defined (RFC 8259, section 4)
		}
		metadata, _ := model["metadata"].(map[string]any)
		if name, ok := metadata["name"].(string); ok && name != object.Name() {
			t.Fatalf("got name %q, want %q", object.Name(), name)
		}
		if metadata != nil {
			delete(metadata, "managedFields")
		}
		var got map[string]any
		if err := json.Unmarshal(object.WithoutManagedFields().JSON(), &got); err != nil {
			t.Fatalf("cutting managedFields out of %q made %q: %v", data, object.WithoutManagedFields().JSON(), err)
		}
		if !reflect.DeepEqual(got, model) {
			t.Fatalf("without managedFields: got %v, want %v", got, model)
		}
		for keep, want := range map[bool]*delta.Object{true: object, false: object.WithoutManagedFields()} {
			if copied, err := delta.CopyObject(data, keep); err != nil || !bytes.Equal(copied.JSON(), want.JSON()) {
				t.Fatalf("a copy with managedFields kept: %v is %v, %v, want %s", keep, copied, err, want.JSON())
			}
		}
	})
}

// hasDuplicates reports whether an object in data has two members of one name.
func hasDuplicates(data []byte) bool {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	var walk func() bool
	walk = func() bool {
		token, err := decoder.Token()
		if err != nil {
			return false
		}
		open, ok := token.(json.Delim)
		if !ok {
			return false
		}
		seen := map[string]bool{}
		found := false
		for decoder.More() {
			if open == '{' {
				key, err := decoder.Token()
				if err != nil {
					return found
				}
				name, _ := key.(string)
				found = found || seen[name]
				seen[name] = true
			}
			found = walk() || found
		}
		_, _ = decoder.Token()
		return found
	}
	return walk()
}

func BenchmarkNewObject(b *testing.B) {
	raw := pod(b)
	b.Run("scan", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := delta.NewObject(raw); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		object, err := delta.NewObject(raw)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.SetBytes(int64(len(raw)))
		for b.Loop() {
			if _, err := object.Unstructured(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
