package checkpoint

import (
	"encoding/binary"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/delta"
)

// Whatever the file holds, reading it fails or gives an entry; it never panics and never asks for absurd memory.
func FuzzEntry(f *testing.F) {
	object, err := delta.NewObject([]byte(`{"metadata":{"name":"a"}}`))
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range []delta.Entry{
		{Gap: &delta.Gap{Watch: "w"}},
		{Delta: &delta.Delta{Type: delta.Added, Resource: schema.GroupVersionResource{Resource: "r"}, Object: object, Observed: time.Unix(1, 0)}},
	} {
		data, err := encodeEntry(&e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeEntry(1, data)
		if err == nil && e.Gap == nil && (e.Delta == nil || e.Delta.Object == nil) {
			t.Errorf("got %+v without an error", e)
		}
	})
}

// An entry of a file from before a DELETED had a version that orders it.
func TestEntryWithoutAsOf(t *testing.T) {
	object, err := delta.NewObject([]byte(`{"metadata":{"name":"a","uid":"u","resourceVersion":"7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	head := `{"t":"DELETED","r":{"Group":"","Version":"v1","Resource":"pods"},"w":"w","o":1,"i":true,"u":true}`
	data := s2.Encode(nil, object.JSON())
	data = append(append(binary.AppendUvarint(nil, uint64(len(head))), head...), data...)
	e, err := decodeEntry(1, data)
	if err != nil || e.Delta.AsOf != 0 || !e.Delta.Inferred || e.Delta.ID("c") != "c/u/7/DELETED" {
		t.Errorf("got %+v, %v", e.Delta, err)
	}
}

func FuzzKnown(f *testing.F) {
	f.Add([]byte("ns/name"), []byte{1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte("/name"), []byte("\x025\x00uid"))
	f.Add([]byte("/name"), []byte("\x82\x03\x04kept5\x00uid"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		k, err := decodeKnown(key, value)
		if err != nil {
			return
		}
		again, err := decodeKnown(appendKnownKey(nil, &k), appendKnown(nil, &k))
		if err != nil || !reflect.DeepEqual(again, k) {
			t.Errorf("got %+v and %v, want %+v", again, err, k)
		}
	})
}

// What a pipeline made of a delta comes back as it was, though the object's JSON may not tell whose it is.
func TestEntryKeepsWhatAPipelineMade(t *testing.T) {
	object, err := delta.NewObject([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	for _, want := range []delta.Delta{
		{Object: object.WithJSON([]byte(`{"spec":{}}`))},
		{Object: object, Difference: &delta.Difference{}},
		{Object: object, Difference: &delta.Difference{Known: true, OldResourceVersion: "6", Patch: []byte(`[]`)}},
		{Object: object.WithJSON([]byte(`{}`)), Difference: &delta.Difference{Known: true, OldResourceVersion: "6", OldObject: []byte(`{"spec":{}}`)}},
		{Object: object.Identity(), Bare: true},
		{Object: object, AsOf: math.MaxUint64},
	} {
		want.Type, want.Resource, want.Watch, want.Observed = delta.Modified, resource, "w", time.Unix(1, 2)
		data, err := encodeEntry(&delta.Entry{Seq: 3, Delta: &want})
		if err != nil {
			t.Fatal(err)
		}
		entry, err := decodeEntry(3, data)
		if err != nil {
			t.Fatal(err)
		}
		got := *entry.Delta
		if string(got.Object.JSON()) != string(want.Object.JSON()) || got.ID("c") != want.ID("c") || got.Ref() != want.Ref() || got.Object.Kind() != "Deployment" {
			t.Errorf("got %s %s, want %s %s", got.ID("c"), got.Object.JSON(), want.ID("c"), want.Object.JSON())
		}
		got.Object, want.Object = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for n := range data { // cut short or damaged, it is an error or an entry, and never a panic
			_, _ = decodeEntry(3, data[:n])
		}
	}
}
