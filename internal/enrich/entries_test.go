package enrich

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func keyOfThing(name string) key { return key{schema.GroupKind{Kind: "Thing"}, "shop", name} }

// each is what the entries of these tests take.
var each = (&entry{key: keyOfThing("a"), uid: "u", metadata: json.RawMessage("{}")}).size()

func fill(s *store, names ...string) {
	for _, name := range names {
		s.put(keyOfThing(name), "u", json.RawMessage("{}"), time.Unix(0, 0))
	}
}

func has(s *store, name string) bool {
	_, ok := s.lookup("shop", thing(name, "u"))
	return ok
}

func TestEviction(t *testing.T) {
	s := newStore(3*each, time.Minute)
	fill(s, "a", "b", "c")
	if s.bytes != 3*each || !has(s, "a") {
		t.Fatalf("%d bytes, want %d and a", s.bytes, 3*each)
	}
	fill(s, "c", "b") // a change is no lookup
	fill(s, "d")      // b was not used for the longest
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if has(s, name) != want {
			t.Errorf("%s is known: %v, want %v", name, !want, want)
		}
	}
	s.put(keyOfThing("d"), "u", make(json.RawMessage, 4*each), time.Unix(0, 0)) // would take more than all
	if s.bytes != 2*each || has(s, "d") || s.used.Len() != 2 {
		t.Errorf("%d bytes of %d objects", s.bytes, len(s.entries))
	}
}

func TestDeletedForAWhile(t *testing.T) {
	s := newStore(1<<20, time.Minute)
	fill(s, "a", "b", "c")
	at := time.Unix(0, 0)
	s.delete(keyOfThing("a"), "u", at)
	s.delete(keyOfThing("b"), "u", at)
	s.delete(keyOfThing("c"), "other", at) // came after its successor
	fill(s, "b")                           // came back
	s.expire(at.Add(time.Minute - 1))
	if !has(s, "a") {
		t.Error("a was forgotten too soon")
	}
	s.expire(at.Add(time.Minute))
	if has(s, "a") || !has(s, "b") || !has(s, "c") || s.bytes != 2*each {
		t.Errorf("%v, %d bytes", s.entries, s.bytes)
	}
}

// TestStoreModel: whatever is done, the bytes are those of what is kept, within the bound, and nothing is kept twice.
func TestStoreModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newStore(int64(rapid.IntRange(0, 10).Draw(t, "bound"))*each, time.Minute)
		now := time.Unix(0, 0)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			of := keyOfThing(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "name"))
			of.kind.Kind = rapid.SampledFrom([]string{"Thing", "Other"}).Draw(t, "kind")
			uid := types.UID(rapid.SampledFrom([]string{"u", "v"}).Draw(t, "uid"))
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1, 2:
				s.put(of, uid, make(json.RawMessage, rapid.IntRange(2, 500).Draw(t, "size")), now)
				if e := s.entries[of]; e != nil && (e.uid != uid || e.deleted != nil) {
					t.Fatalf("what was put is %+v", e)
				}
			case 3:
				s.delete(of, uid, now)
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second)
				s.expire(now)
			}
			var bytes int64
			deleted := 0
			for of, e := range s.entries {
				if e.key != of {
					t.Fatal("an entry is in the wrong place")
				}
				bytes += e.size()
				if e.deleted != nil {
					deleted++
				}
			}
			if got := fmt.Sprint(s.bytes, s.used.Len(), s.deleted.Len()); s.bytes > s.maxBytes || got != fmt.Sprint(bytes, len(s.entries), deleted) {
				t.Fatalf("bytes, entries, deleted: got %s, want %d %d %d within %d", got, bytes, len(s.entries), deleted, s.maxBytes)
			}
		}
	})
}
