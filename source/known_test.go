package source

import (
	"fmt"
	"strings"
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
		name := rapid.SampledFrom(knownNames)
		object := func(n string) *delta.Object {
			version++
			return versioned(t, n, fmt.Sprint(version))
		}
		key := func(n string) objectKey { return keyOfKnown(&delta.Known{Namespace: "ns", Name: n}) }
		const well, full, lies = 0, 1, 2 // the disk
		var captured *delta.WatchChange  // by the commit in progress
		capture := func() {
			put, remove := k.capture()
			captured = &delta.WatchChange{Put: put, Remove: remove}
		}
		end := func(disk int) {
			written := captured
			captured = nil
			if disk == full {
				k.failed()
				return
			}
			for _, r := range written.Remove {
				delete(stored, r.Name)
			}
			for _, p := range written.Put {
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
			if len(k.changed) > 0 {
				return
			}
			if len(stored) != k.len() {
				t.Fatalf("stored %v, known %v", stored, k.objects)
			}
			if len(k.versions) > 0 || k.previous.bytes != 0 {
				t.Fatalf("%d bytes are on disk, and in memory: %v", k.previous.bytes, k.versions)
			}
			for n, s := range stored {
				o, ok := k.find(key(n))
				if !ok || !o.version.Equal(&s.Version) || uint64(o.filtered) != s.Filtered || uint64(o.had) != s.Had || o.due != k.dueOf(PipelineSet(s.Due), s.Era) || o.retained != s.Retained {
					t.Fatalf("%s: stored %+v, known %+v", n, s, o)
				}
			}
		}
		commit := func(disk int) {
			if captured == nil {
				capture()
			}
			end(disk)
		}
		drawDisk := func(t *rapid.T) int { return rapid.SampledFrom([]int{well, well, full, lies}).Draw(t, "disk") }
		for n := range rapid.IntRange(0, len(knownNames)).Draw(t, "restored") {
			o := object(knownNames[n])
			s := delta.Known{Namespace: "ns", Name: o.Name(), Version: o.Version()}
			stored[s.Name] = s
			if rapid.Bool().Draw(t, "excluded") {
				k.remove(keyOfKnown(&s))
				continue
			}
			k.restore(&s, views{filtered: PipelineSet(s.Filtered), had: PipelineSet(s.Had), due: PipelineSet(s.Due)}, rapid.Bool().Draw(t, "changed"))
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
				if captured == nil && rapid.Bool().Draw(t, "while a commit that fails is written") {
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
			"commit": func(t *rapid.T) { commit(drawDisk(t)) },
			"begin a commit": func(*rapid.T) {
				if captured == nil {
					capture()
				}
			},
			// The metadata of its watch had not changed, so it was not captured.
			"fail": func(*rapid.T) {
				if captured == nil {
					k.failed()
				}
			},
			"begin a round": func(*rapid.T) { k.beginRound() },
			"begin a snapshot": func(t *rapid.T) {
				pipeline := rapid.IntRange(0, 1).Draw(t, "pipeline")
				k.begin(pipeline)
				if k.due[pipeline] != k.len() {
					t.Fatalf("%d of %d are due", k.due[pipeline], k.len())
				}
			},
			// Each object comes once, whatever becomes of those that have come, and whatever is committed meanwhile.
			"go through": func(t *rapid.T) {
				want := map[string]bool{}
				objects := k.all
				if rapid.Bool().Draw(t, "unseen") {
					objects = k.unseen
				}
				for at := range objects {
					want[at.name] = true
				}
				for at, known := range objects {
					n := at.name
					if o, ok := k.find(key(n)); !want[n] || !ok || !o.version.Equal(&known.version) {
						t.Fatalf("%q came, want %v", n, want)
					}
					delete(want, n)
					switch rapid.IntRange(0, 3).Draw(t, "then") {
					case 0:
						k.remove(at)
					case 1:
						version := object(n).Version()
						k.set(at, knownObject{version: version, round: known.round, views: drawViews(t)}, nil)
					case 2:
						commit(drawDisk(t))
					}
				}
				if len(want) > 0 {
					t.Fatalf("%v did not come", want)
				}
			},
		})
		if captured != nil {
			end(well)
		}
		commit(well)
	})
}

// knownNames are short ones and long ones: those of RBAC have no limit.
var knownNames = []string{"a", "b", "c", strings.Repeat("d", 253), strings.Repeat("e", 253), strings.Repeat("f", 2000), "g"}

func versioned(t *rapid.T, name, resourceVersion string) *delta.Object {
	o, err := delta.NewObject(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"T","metadata":{"name":%q,"namespace":"ns","uid":"u","resourceVersion":%q}}`, name, resourceVersion))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func drawViews(t *rapid.T) views {
	bits := rapid.Uint64Range(0, 3)
	return views{filtered: PipelineSet(bits.Draw(t, "filtered")), had: PipelineSet(bits.Draw(t, "had")), due: PipelineSet(bits.Draw(t, "due"))}
}
