package enrich

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"
)

func newStore(maxBytes int64) (*store, *kind) {
	return &store{maxBytes: maxBytes, deletedFor: time.Minute}, &kind{objects: map[cache.ObjectName]*entry{}}
}

// each is what the entries of these tests take.
var each = (&entry{name: cache.NewObjectName("shop", "a"), uid: "u", metadata: json.RawMessage("{}")}).size()

func fill(s *store, k *kind, names ...string) {
	for _, name := range names {
		s.put(k, cache.NewObjectName("shop", name), "u", json.RawMessage("{}"), time.Unix(0, 0))
	}
}

func removeAll(s *store, k *kind) {
	for _, e := range k.objects {
		s.remove(e)
	}
}

func has(s *store, k *kind, name string) bool {
	_, ok := s.lookup(k, "shop", thing(name, "u"))
	return ok
}

func TestEviction(t *testing.T) {
	s, k := newStore(3 * each)
	fill(s, k, "a", "b", "c")
	if s.bytes != 3*each || !has(s, k, "a") {
		t.Fatalf("%d bytes, want %d and a", s.bytes, 3*each)
	}
	fill(s, k, "c", "b") // a change is no lookup
	fill(s, k, "d")      // b was not used for the longest
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if has(s, k, name) != want {
			t.Errorf("%s is known: %v, want %v", name, !want, want)
		}
	}
	s.put(k, cache.NewObjectName("shop", "d"), "u", make(json.RawMessage, 4*each), time.Unix(0, 0)) // would take more than all
	if s.bytes != 2*each || has(s, k, "d") || s.used.Len() != 2 {
		t.Errorf("%d bytes of %d objects", s.bytes, len(k.objects))
	}
}

// The bound is one for all kinds, and what is dismissed with its kind gives its bytes back.
func TestEvictionOverKinds(t *testing.T) {
	s, one := newStore(4 * each)
	two := &kind{objects: map[cache.ObjectName]*entry{}}
	fill(s, one, "a", "b")
	fill(s, two, "a", "b", "c")
	if len(one.objects) != 1 || len(two.objects) != 3 || has(s, one, "a") {
		t.Errorf("%d and %d objects", len(one.objects), len(two.objects))
	}
	removeAll(s, two)
	if s.bytes != each || s.used.Len() != 1 {
		t.Errorf("%d bytes, want %d", s.bytes, each)
	}
}

func TestDeletedForAWhile(t *testing.T) {
	s, k := newStore(1 << 20)
	fill(s, k, "a", "b", "c")
	at := time.Unix(0, 0)
	s.delete(k, cache.NewObjectName("shop", "a"), "u", at)
	s.delete(k, cache.NewObjectName("shop", "b"), "u", at)
	s.delete(k, cache.NewObjectName("shop", "c"), "other", at) // came after its successor
	fill(s, k, "b")                                            // came back
	s.expire(at.Add(time.Minute - 1))
	if !has(s, k, "a") {
		t.Error("a was forgotten too soon")
	}
	s.expire(at.Add(time.Minute))
	if has(s, k, "a") || !has(s, k, "b") || !has(s, k, "c") || s.bytes != 2*each {
		t.Errorf("%v, %d bytes", k.objects, s.bytes)
	}
}

// TestStoreModel: whatever is done, the bytes are those of what is kept, within the bound, and nothing is kept twice.
func TestStoreModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, k := newStore(int64(rapid.IntRange(0, 10).Draw(t, "bound")) * each)
		kinds := []*kind{k, {objects: map[cache.ObjectName]*entry{}}}
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			k := rapid.SampledFrom(kinds).Draw(t, "kind")
			name := cache.NewObjectName("shop", rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "name"))
			uid := types.UID(rapid.SampledFrom([]string{"u", "v"}).Draw(t, "uid"))
			switch rapid.IntRange(0, 6).Draw(t, "step") {
			case 0, 1, 2:
				s.put(k, name, uid, make(json.RawMessage, rapid.IntRange(2, 500).Draw(t, "size")), now)
				if e := k.objects[name]; e != nil && (e.uid != uid || e.deleted != nil) {
					t.Fatalf("what was put is %+v", e)
				}
			case 3:
				s.delete(k, name, uid, now)
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
				s.expire(now)
			case 5:
				k.lists++
				s.sweep(k, now)
			case 6:
				removeAll(s, k)
			}
			var bytes int64
			entries, deleted := 0, 0
			for _, k := range kinds {
				for name, e := range k.objects {
					if e.name != name || e.kind != k {
						t.Fatal("an entry is in the wrong place")
					}
					bytes += e.size()
					entries++
					if e.deleted != nil {
						deleted++
					}
				}
			}
			if got := fmt.Sprint(s.bytes, s.used.Len(), s.deleted.Len()); s.bytes > s.maxBytes || got != fmt.Sprint(bytes, entries, deleted) {
				t.Fatalf("bytes, entries, deleted: got %s, want %d %d %d within %d", got, bytes, entries, deleted, s.maxBytes)
			}
		}
	})
}
