package enrich

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

func keyOfThing(name string) key { return key{schema.GroupKind{Kind: "Thing"}, "shop", name} }

// each is what the entries of these tests take.
var each = (&entry{key: keyOfThing("a"), uid: "u", metadata: json.RawMessage("{}")}).size()

func fill(c *Cache, names ...string) {
	for _, name := range names {
		c.put(keyOfThing(name), "u", json.RawMessage("{}"))
	}
}

func has(c *Cache, name string) bool {
	_, ok := c.Lookup("shop", thing(name, "u"))
	return ok
}

func TestEviction(t *testing.T) {
	c := New(3*each, prometheus.NewRegistry())
	fill(c, "a", "b", "c")
	if c.bytes != 3*each || !has(c, "a") {
		t.Fatalf("%d bytes, want %d and a", c.bytes, 3*each)
	}
	fill(c, "c", "b") // a change is no lookup
	fill(c, "d")      // b was not used for the longest
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		if has(c, name) != want {
			t.Errorf("%s is known: %v, want %v", name, !want, want)
		}
	}
	c.put(keyOfThing("d"), "u", make(json.RawMessage, 4*each)) // would take more than all
	if c.bytes != 2*each || has(c, "d") || c.used.Len() != 2 {
		t.Errorf("%d bytes of %d objects", c.bytes, len(c.entries))
	}
}

func TestDeletedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCache()
		fill(c, "a", "b", "c")
		c.delete(keyOfThing("a"), "u")
		c.delete(keyOfThing("b"), "u")
		c.delete(keyOfThing("c"), "other") // came after its successor
		fill(c, "b")                       // came back
		time.Sleep(deletedFor - 1)
		if !has(c, "a") {
			t.Error("a was forgotten too soon")
		}
		time.Sleep(2 * time.Nanosecond)
		synctest.Wait()
		if has(c, "a") || !has(c, "b") || !has(c, "c") || c.bytes != 2*each {
			t.Errorf("%v, %d bytes", c.entries, c.bytes)
		}
	})
}

// TestStoreModel: whatever is done, the bytes are those of what is kept, within the bound, and nothing is kept twice.
func TestStoreModel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { rapid.Check(struct{ rapid.TB }{t}, storeModel) })
}

func storeModel(t *rapid.T) {
	c := New(int64(rapid.IntRange(0, 10).Draw(t, "bound"))*each, prometheus.NewRegistry())
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		of := keyOfThing(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "name"))
		of.kind.Kind = rapid.SampledFrom([]string{"Thing", "Other"}).Draw(t, "kind")
		uid := types.UID(rapid.SampledFrom([]string{"u", "v"}).Draw(t, "uid"))
		step := rapid.IntRange(0, 4).Draw(t, "step")
		switch step {
		case 0, 1, 2:
			c.put(of, uid, make(json.RawMessage, rapid.IntRange(2, 500).Draw(t, "size")))
		case 3:
			c.delete(of, uid)
		default:
			time.Sleep(time.Duration(rapid.IntRange(0, 450).Draw(t, "seconds")) * time.Second)
			synctest.Wait()
		}
		c.mu.Lock()
		if e := c.entries[of]; step <= 2 && e != nil && (e.uid != uid || e.forget != nil) {
			t.Fatalf("what was put is %+v", e)
		}
		var bytes int64
		for of, e := range c.entries {
			if e.key != of || e.used.Value != e {
				t.Fatal("an entry is in the wrong place")
			}
			bytes += e.size()
		}
		if got := fmt.Sprint(c.bytes, c.used.Len()); c.bytes > c.maxBytes || got != fmt.Sprint(bytes, len(c.entries)) {
			t.Fatalf("bytes, entries: got %s, want %d %d within %d", got, bytes, len(c.entries), c.maxBytes)
		}
		c.mu.Unlock()
	}
}
