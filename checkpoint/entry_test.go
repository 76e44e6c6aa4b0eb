package checkpoint

import (
	"reflect"
	"testing"
	"time"

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
