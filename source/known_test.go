package source

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// What the commits wrote is what is known, whatever happened between them, and whichever failed.
func TestCommitsHoldTheKnownSet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stored := map[string]delta.Known{}
		k := newKnownSet(true, NewPreviousVersions(300))
		version := 0
		name := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		object := func(n string) *delta.Object {
			version++
			return versioned(t, n, fmt.Sprint(version))
		}
		key := func(n string) objectKey { return keyOfKnown(&delta.Known{Namespace: "ns", Name: n}) }
		known := func(o knownObject, key objectKey) bool {
			if !o.retained {
				return false
			}
			_, packed, stored := k.previous.find(k, key)
			return packed != nil || stored
		}
		const well, full, lies = 0, 1, 2 // the disk
		commit := func(disk int) {
			put, remove := k.capture()
			if disk == full {
				k.failed()
				return
			}
			for _, r := range remove {
				delete(stored, r.Name)
			}
			for _, p := range put {
				if p.Retained && p.Previous == nil { // it is there already
					p.Previous = stored[p.Name].Previous
				}
				if before := unpack(p.Previous); p.Retained && (before == nil || before.ResourceVersion() != p.Version.ResourceVersion()) {
					t.Fatalf("%s is retained as %v", p.Name, before)
				}
				stored[p.Name] = p
			}
			if disk == lies {
				k.failed()
				return
			}
			k.committed()
			if len(stored) != k.len() {
				t.Fatalf("stored %v, known %v", stored, k.objects)
			}
			inMemory := 0
			for key, r := range k.versions {
				if r.place != nil {
					inMemory++
				} else if !r.unstored { // else it is lost
					t.Fatalf("%s is found in the state directory, and takes memory", key.name)
				}
			}
			if p := k.previous; p.unstored != 0 || p.bytes > p.maxBytes || p.inMemory.Len() != inMemory {
				t.Fatalf("%d versions in memory: %+v", inMemory, k.versions)
			}
			for n, s := range stored {
				o, ok := k.find(key(n))
				if !ok || !o.version.Equal(&s.Version) || uint64(o.filtered) != s.Filtered || uint64(o.due) != s.Due || known(o, key(n)) != s.Retained {
					t.Fatalf("%s: stored %+v, known %+v", n, s, o)
				}
			}
		}
		for n := range rapid.IntRange(0, 4).Draw(t, "restored") {
			o := object(string(rune('a' + n)))
			s := delta.Known{Namespace: "ns", Name: o.Name(), Version: o.Version()}
			stored[s.Name] = s
			if rapid.Bool().Draw(t, "excluded") {
				k.remove(keyOfKnown(&s))
				continue
			}
			k.restore(&s, views{filtered: PipelineSet(s.Filtered), due: PipelineSet(s.Due)}, rapid.Bool().Draw(t, "changed"))
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				n := name.Draw(t, "name")
				o := object(n)
				var packed []byte
				if rapid.Bool().Draw(t, "retain") {
					packed = pack(o)
				}
				k.put(o, drawViews(t), packed)
				if rapid.Bool().Draw(t, "while a commit that fails is written") {
					k.capture()
					k.put(object(n), drawViews(t), nil)
					k.failed()
				}
			},
			"remove": func(t *rapid.T) {
				n := name.Draw(t, "name")
				if _, ok := k.find(key(n)); ok {
					k.remove(key(n))
				}
			},
			"put again": func(t *rapid.T) {
				n := name.Draw(t, "name")
				if known, ok := k.find(key(n)); ok {
					o := versioned(t, n, known.version.ResourceVersion())
					k.put(o, drawViews(t), rapid.SampledFrom([][]byte{nil, pack(o)}).Draw(t, "retained"))
					if put, _ := k.find(key(n)); known.retained && !put.retained {
						t.Fatalf("%s is not retained any more", n)
					}
				}
			},
			"commit": func(t *rapid.T) { commit(rapid.SampledFrom([]int{well, well, full, lies}).Draw(t, "disk")) },
			// The metadata of its watch had not changed, so it was not captured.
			"fail": func(*rapid.T) { k.failed() },
		})
		commit(well)
	})
}

func versioned(t *rapid.T, name, resourceVersion string) *delta.Object {
	o, err := delta.NewObject(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"T","metadata":{"name":%q,"namespace":"ns","uid":"u","resourceVersion":%q}}`, name, resourceVersion))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func drawViews(t *rapid.T) views {
	bits := rapid.Uint64Range(0, 3)
	return views{filtered: PipelineSet(bits.Draw(t, "filtered")), due: PipelineSet(bits.Draw(t, "due"))}
}
