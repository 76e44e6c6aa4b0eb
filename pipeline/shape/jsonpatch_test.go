package shape

import (
	"bytes"
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Decoded, small objects take many times their JSON: two versions of 4 MB took 214 MB. A JSON Patch replaces the document, and in place of
// a merge patch, which cannot, the record says that the previous version is unknown.
func TestDifferenceOfManyObjects(t *testing.T) {
	many := func(name string) *delta.Object {
		object, err := delta.NewObject([]byte(`{"metadata":{"name":"a","uid":"u","resourceVersion":"1"},"items":[` +
			strings.Repeat(`,{"name":"`+name+`"}`, maxCompared)[1:] + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	old, object := many("a"), many("b")
	for _, diff := range []Diff{DiffJSONPatch, DiffMergePatch} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		difference, err := diff.between(old, object)
		runtime.ReadMemStats(&after)
		if err != nil {
			t.Fatal(err)
		}
		if got, most := after.TotalAlloc-before.TotalAlloc, uint64(4*len(object.JSON())); got > most {
			t.Errorf("%s: allocated %d bytes, want at most %d", diff, got, most)
		}
		if diff == DiffMergePatch {
			if difference.Known || difference.Patch != nil || difference.OldObject != nil {
				t.Errorf("%s: got %.100s, known: %v", diff, difference.Patch, difference.Known)
			}
			continue
		}
		patch, err := jsonpatch.DecodePatch(difference.Patch)
		if err != nil {
			t.Fatal(err)
		}
		applied, err := patch.Apply(old.JSON())
		if err != nil || !jsonpatch.Equal(applied, object.JSON()) {
			t.Errorf("the patch does not make the object: %v", err)
		}
	}
}

// A patch repeats the pointer in each operation. One long key over many changed items made a patch of 500 MB of an object
// of 80 KB, and took 1.7 GiB of memory.
func TestJSONPatchIsBounded(t *testing.T) {
	long := strings.Repeat("k", 50_000)
	manyItems := func(value string) []byte {
		items := strings.Repeat(","+value, 10_000)[1:]
		return fmt.Appendf(nil, `{"spec":{%q:[%s]}}`, long, items)
	}
	manyKeys := func(value string) []byte {
		var members []string
		for i := range 10_000 {
			members = append(members, fmt.Sprintf(`"%d":%s`, i, value))
		}
		return fmt.Appendf(nil, `{"spec":{%q:{%s}}}`, long, strings.Join(members, ","))
	}
	for _, test := range []struct {
		name        string
		old, object []byte
	}{
		{"items of a list under a long key", manyItems("1"), manyItems("2")},
		{"items removed under a long key", manyItems("1"), fmt.Appendf(nil, `{"spec":{%q:[]}}`, long)},
		{"items added under a long key", fmt.Appendf(nil, `{"spec":{%q:[]}}`, long), manyItems("2")},
		{"members of an object under a long key", manyKeys("1"), manyKeys(`{"a":2}`)},
		{"a value of another kind", manyItems("[]"), manyItems("{}")},
	} {
		t.Run(test.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			patch, err := jsonPatch(test.old, test.object)
			runtime.ReadMemStats(&after)
			if err != nil {
				t.Fatal(err)
			}
			if most := len(test.object) + 64; len(patch) > most {
				t.Errorf("the patch has %d bytes, want at most %d", len(patch), most)
			}
			if got, most := after.TotalAlloc-before.TotalAlloc, uint64(100*(len(test.old)+len(test.object))); got > most {
				t.Errorf("allocated %d bytes, want at most %d", got, most)
			}
			decoded, err := jsonpatch.DecodePatch(patch)
			if err != nil {
				t.Fatal(err)
			}
			applied, err := decoded.Apply(test.old)
			if err != nil {
				t.Fatal(err)
			}
			if !jsonpatch.Equal(applied, test.object) {
				t.Error("the patch does not make the new version of the old")
			}
		})
	}
}

// A difference of two deep objects takes time linear in their size: each level is compared once.
func TestDifferenceOfDeepObjects(t *testing.T) {
	nested := func(value string) []byte {
		const levels = 5000
		return []byte(strings.Repeat(`{"a":`, levels) + value + strings.Repeat("}", levels))
	}
	for name, difference := range map[string]func(old, object []byte) ([]byte, error){"JSON Patch": jsonPatch, "merge patch": mergePatch} {
		result, err := difference(nested("1"), nested("2"))
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid(result) || !bytes.Contains(result, []byte("2")) {
			t.Errorf("%s: got %.100s", name, result)
		}
	}
}

// What a small change becomes, operation by operation.
func TestJSONPatchOperations(t *testing.T) {
	pad := fmt.Sprintf(`"pad":%q`, strings.Repeat("x", 400))
	got, err := jsonPatch([]byte(`{"a/b":1,"c~d":[1,2,3],"e":{"f":null},`+pad+`}`), []byte(`{"a/b":2,"c~d":[1,5],"e":{"f":null,"g":[{}]},`+pad+`}`))
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"value":2,"op":"replace","path":"/a~1b"},{"op":"remove","path":"/c~0d/2"},` +
		`{"value":5,"op":"replace","path":"/c~0d/1"},{"value":[{}],"op":"add","path":"/e/g"}]`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	same, err := jsonPatch([]byte(`{"a":1}`), []byte(`{"a":1}`))
	if err != nil || string(same) != "[]" {
		t.Errorf("got %s, %v, want an empty list", same, err)
	}
}
