package shape

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
)

func TestObjectsThatLeave(t *testing.T) {
	for _, c := range []struct {
		name           string
		onLeave        OnLeave
		d              delta.Delta
		now            string
		before, passes bool
		sent           string // type of what is sent; empty for nothing
	}{
		{"stays", OnLeaveDeleted, delta.Delta{Type: delta.Modified}, "in", true, true, "MODIFIED"},
		{"comes", OnLeaveDeleted, delta.Delta{Type: delta.Modified}, "in", false, true, "MODIFIED"},
		{"leaves", OnLeaveDeleted, delta.Delta{Type: delta.Modified}, "out", true, false, "DELETED"},
		{"leaves quietly", OnLeaveIgnore, delta.Delta{Type: delta.Modified}, "out", true, false, ""},
		{"was never in", OnLeaveDeleted, delta.Delta{Type: delta.Modified}, "out", false, false, ""},
		{"is deleted in a version that does not pass", OnLeaveDeleted, delta.Delta{Type: delta.Deleted}, "out", true, false, "DELETED"},
		{"is deleted after it left", OnLeaveDeleted, delta.Delta{Type: delta.Deleted}, "out", false, false, ""},
		{"is created out", OnLeaveDeleted, delta.Delta{Type: delta.Added}, "out", false, false, ""},
		{"left unseen, before a snapshot", OnLeaveDeleted, delta.Delta{Type: delta.Added, Snapshot: true}, "out", true, false, "DELETED"},
		{"was deleted unseen", OnLeaveIgnore, delta.Delta{Type: delta.Deleted, FinalStateUnknown: true}, "out", true, true, "DELETED"},
		{"cannot decide", OnLeaveDeleted, delta.Delta{Type: delta.Modified}, "broken", true, true, "dead"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := start(t, func(o *Options) {
				o.OnLeave, o.Filters = c.onLeave, []Filter{fieldFilter{"where", "in"}}
			})
			d := c.d
			d.Resource, d.Object = pods, version(t, 7, fmt.Sprintf(`"where":%q`, c.now))
			passes, filtered := p.take(t, &d, c.before)
			if passes != c.passes || filtered != (c.sent == "") {
				t.Errorf("passes: %v, kept back: %v", passes, filtered)
			}
			var got []string
			for _, record := range append(p.sent, p.dead...) {
				got = append(got, record.ID)
			}
			want := []string(nil)
			switch c.sent {
			case "":
			case "dead":
				want = []string{"c/u/7/MODIFIED"}
			default:
				want = []string{"c/u/7/" + c.sent}
			}
			if !reflect.DeepEqual(got, want) || len(p.dead) > 0 != (c.sent == "dead") {
				t.Errorf("sent %v, want %v", got, want)
			}
		})
	}
}

// oddVersion passes changes to odd versions, whatever the object.
type oddVersion struct{}

func (oddVersion) Pass(c *Change) (bool, error) {
	version := c.observed.Object.ResourceVersion()
	return (version[len(version)-1]-'0')%2 == 1, nil
}

func (oddVersion) OfObject() bool { return false }

// An object that comes back after it left is sent, though a filter refuses this change of it.
func TestObjectsThatComeBack(t *testing.T) {
	for _, onLeave := range []OnLeave{OnLeaveDeleted, OnLeaveIgnore} {
		p := start(t, func(o *Options) {
			o.OnLeave, o.Filters = onLeave, []Filter{oddVersion{}, fieldFilter{"where", "in"}}
		})
		d := &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 8, `"where":"in"`)}
		if _, filtered := p.take(t, d, false); filtered != (onLeave == OnLeaveIgnore) {
			t.Errorf("%s: comes: kept back %v", onLeave, filtered)
		}
		if _, filtered := p.take(t, d, true); !filtered {
			t.Errorf("%s: a change that is not wanted was sent", onLeave)
		}
	}
}

// A version that filters kept back is no previous version, though another pipeline has it.
func TestPreviousVersionThatWasKeptBack(t *testing.T) {
	p := start(t, func(o *Options) {
		o.Filters, o.Diff = []Filter{fieldFilter{"where", "in"}, ChangedFilter{path(t, "size")}}, DiffOldObject
	})
	d := &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 8, `"where":"in","size":2`), Old: version(t, 7, `"where":"out","size":2`)}
	if passes, filtered := p.take(t, d, false); !passes || filtered {
		t.Errorf("an object that comes: passes %v, kept back %v", passes, filtered)
	}
	if e := p.Explain(t.Context(), d, false, nil); !e.Taken || strings.Contains(string(e.Record.Body), `"out"`) {
		t.Errorf("explained as taken: %v, with %s", e.Taken, e.Record.Body)
	}
	if _, filtered := p.take(t, d, true); !filtered {
		t.Error("a change of nothing that counts was sent")
	}
	if len(p.sent) != 1 || !strings.Contains(string(p.sent[0].Body), `"oldObjectKnown":false`) {
		t.Errorf("got %v", p.sent)
	}
	if d.Old == nil {
		t.Error("the delta was changed, which other pipelines take too")
	}
}

// Whether the pipeline has an object is known though a filter before refuses the change, or its version would be a previous one.
func TestObjectBehindARefusedChange(t *testing.T) {
	p := start(t, func(o *Options) {
		o.Filters = []Filter{TypesFilter{delta.Modified}, fieldFilter{"where", "in"}, ChangedFilter{path(t, "size")}}
	})
	added := &delta.Delta{Type: delta.Added, Resource: pods, Object: version(t, 7, `"where":"out","size":2`)}
	passes, filtered := p.take(t, added, false)
	if passes || !filtered {
		t.Errorf("an object that is out: passes %v, kept back %v", passes, filtered)
	}
	d := &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 8, `"where":"in","size":2`), Old: added.Object}
	if passes, filtered := p.take(t, d, passes); !passes || filtered {
		t.Errorf("an object that comes: passes %v, kept back %v", passes, filtered)
	}
}

// A change of a type that is not wanted becomes no dead letter, whatever else fails on it, and is decoded only
// if the object's end is sent.
func TestUnwantedTypesFailNothing(t *testing.T) {
	for _, types := range []TypesFilter{{delta.Deleted}, {delta.Added}} {
		p := start(t, func(o *Options) { o.Filters = []Filter{types, fieldFilter{"where", "in"}} })
		d := &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 8, `"where":"broken"`)}
		if passes, filtered := p.take(t, d, true); !filtered || !passes {
			t.Errorf("%v: passes %v, kept back %v", types, passes, filtered)
		}
		d.Object = version(t, 9, `"where":"out"`)
		if passes, _ := p.take(t, d, true); passes != (types[0] == delta.Added) {
			t.Errorf("%v: passes %v", types, passes)
		}
		if len(p.errs) > 0 {
			t.Errorf("got %v", p.errs)
		}
	}
}

// Only the filters of types decide whether the end of an object is sent when it leaves.
func TestLeavingAsksForTypes(t *testing.T) {
	p := start(t, func(o *Options) {
		o.OnLeave, o.Filters = OnLeaveDeleted, []Filter{fieldFilter{"where", "in"}, TypesFilter{delta.Added, delta.Modified}}
	})
	if _, filtered := p.take(t, &delta.Delta{Type: delta.Modified, Resource: pods, Object: version(t, 7, `"where":"out"`)}, true); !filtered {
		t.Error("a type that is not wanted was sent")
	}
	// A change that is not wanted does not mean that the object left.
	passes, filtered := p.take(t, &delta.Delta{Type: delta.Deleted, Resource: pods, Object: version(t, 8, `"where":"in"`)}, true)
	if !passes || !filtered {
		t.Errorf("passes: %v, kept back: %v", passes, filtered)
	}
}

func TestTransformsAndDifference(t *testing.T) {
	for _, c := range []struct {
		diff Diff
		want string // in the record's data
	}{
		{DiffNone, ``},
		{DiffOldObject, `"oldObject":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"shop","resourceVersion":"6","uid":"u"},"word":"OLD"},"oldResourceVersion":"6"`},
		{DiffJSONPatch, `"patch":[{"value":"7","op":"replace","path":"/metadata/resourceVersion"},{"value":"NEW","op":"replace","path":"/word"}]`},
		{DiffMergePatch, `"patch":{"metadata":{"resourceVersion":"7"},"word":"NEW"}`},
	} {
		p := start(t, func(o *Options) {
			o.Diff, o.Transforms = c.diff, []Transform{upper{"word", "secret"}}
		})
		old, object := version(t, 6, `"word":"old","secret":"s3cret"`), version(t, 7, `"word":"new","secret":"s3cret2"`)
		before := string(old.JSON()) + string(object.JSON())
		p.take(t, &delta.Delta{Type: delta.Modified, Resource: pods, Object: object, Old: old}, true)
		if body := string(p.sent[0].Body); !strings.Contains(body, c.want) || !strings.Contains(body, `"word":"NEW"`) || strings.Contains(body, "s3cret") {
			t.Errorf("%s: got %s", c.diff, body)
		}
		if string(old.JSON())+string(object.JSON()) != before {
			t.Error("a transform changed what other pipelines see")
		}
	}
}

// A Secret that was redacted when it was retained is not redacted once more: its digests compare with the new version's.
func TestRetainedSecretsCompare(t *testing.T) {
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	redactor := NewRedactor([]byte("key"), "c")
	secret := func(resourceVersion int, value string) *delta.Object {
		return version(t, resourceVersion, fmt.Sprintf(`"data":{"same":"c2FtZQ==","other":%q}`, value))
	}
	p := start(t, func(o *Options) { o.Diff, o.Redactor = DiffJSONPatch, redactor })
	var retention Retention
	retention.Add(p.Shaper)
	kept := retention.Retain(secrets, secret(6, "b25l"))
	if text := string(kept.JSON()); strings.Contains(text, "c2FtZQ") || strings.Contains(text, "b25l") {
		t.Fatalf("kept %s", text)
	}
	p.take(t, &delta.Delta{Type: delta.Modified, Resource: secrets, Object: secret(7, "dHdv"), Old: kept}, true)
	if body := string(p.sent[0].Body); !strings.Contains(body, `"path":"/data/other"`) || strings.Contains(body, `"path":"/data/same"`) || strings.Contains(body, "dHdv") {
		t.Errorf("got %s", body)
	}
}

// value draws any JSON value, numbers that only differ beyond float64 among them. (No name is empty: the library that
// applies the patches does not find one.)
func value(rt *rapid.T, depth int) any {
	switch kind := rapid.IntRange(0, 7).Draw(rt, "kind"); {
	case kind == 0 && depth > 0:
		list := []any{}
		for range rapid.IntRange(0, 3).Draw(rt, "length") {
			list = append(list, value(rt, depth-1))
		}
		return list
	case kind <= 3 && depth > 0:
		object := map[string]any{}
		for range rapid.IntRange(0, 4).Draw(rt, "members") {
			object[rapid.SampledFrom([]string{"a", "b/c", "d~e", "ü"}).Draw(rt, "name")] = value(rt, depth-1)
		}
		return object
	default:
		return rapid.SampledFrom([]any{
			nil, true, "text", "<&>", json.Number("1"), json.Number("9007199254740992"), json.Number("9007199254740993"), json.Number("0.1"),
		}).Draw(rt, "value")
	}
}

// withoutNulls is what RFC 7386 can express of an object. (It does not reach into objects inside arrays; the library that
// applies the patch takes nulls away there too.)
func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		object := map[string]any{}
		for name, member := range v {
			if member != nil {
				object[name] = withoutNulls(member)
			}
		}
		return object
	case []any:
		list := make([]any, len(v))
		for n := range v {
			list[n] = withoutNulls(v[n])
		}
		return list
	default:
		return v
	}
}

func decodeValue(t rapid.TB, data []byte) any {
	v, _, err := decodeBoth[any](data, data)
	if err != nil {
		t.Fatalf("%s: %v", data, err)
	}
	return v
}

// Applied by another library to the previous version, a difference makes the new version.
func TestDifferencesApply(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		from := map[string]any{"kind": "Thing", "x": value(rt, 3)}
		to := map[string]any{"kind": "Thing", "x": value(rt, 3), "y": value(rt, 2)}
		old, err := json.Marshal(from)
		if err != nil {
			rt.Fatal(err)
		}
		object, err := json.Marshal(to)
		if err != nil {
			rt.Fatal(err)
		}
		text, err := jsonPatch(old, object)
		if err != nil {
			rt.Fatal(err)
		}
		patch, err := jsonpatch.DecodePatch(text)
		if err != nil {
			rt.Fatal(err)
		}
		applied, err := patch.Apply(old)
		if err != nil {
			rt.Fatalf("%s to %s: %v", text, old, err)
		}
		if got, want := decodeValue(rt, applied), decodeValue(rt, object); !reflect.DeepEqual(got, want) {
			rt.Errorf("JSON Patch %s\nof %s\nmakes %s\nwant  %s", text, old, applied, object)
		}

		if text, err = mergePatch(old, object); err != nil {
			rt.Fatal(err)
		}
		if applied, err = jsonpatch.MergePatch(old, text); err != nil {
			rt.Fatal(err)
		}
		if got, want := withoutNulls(decodeValue(rt, applied)), withoutNulls(decodeValue(rt, object)); !reflect.DeepEqual(got, want) {
			rt.Errorf("merge patch %s\nof %s\nmakes %s\nwant  %s", text, old, applied, object)
		}
	})
}
