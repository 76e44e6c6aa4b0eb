package shape

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/jsonscan"
)

// Enricher looks up the metadata of the objects that Events are about. Lookup may be called by several goroutines at
// once, and never waits.
type Enricher interface {
	// Lookup returns labels, annotations and ownerReferences, those that the object has, as a JSON object; false if they
	// are not known, or an Event in the namespace must not have them.
	Lookup(namespace string, ref delta.Reference) (metadata json.RawMessage, ok bool)
}

// unknownMetadata marks a reference of whose object nothing is known.
const unknownMetadata = `"metadataKnown":false`

// involvedMember is the member of an Event that names the object it is about; empty if the resource has no Events.
func involvedMember(gvr schema.GroupVersionResource) string {
	switch gvr.GroupResource() {
	case schema.GroupResource{Resource: "events"}:
		return "involvedObject"
	case schema.GroupResource{Group: "events.k8s.io", Resource: "events"}:
		return "regarding"
	default:
		return ""
	}
}

// enrich puts the metadata of the object that an Event is about beside its name. Both versions get the same, so that a
// difference is one of the Event. Nothing is decoded, and nothing else is touched.
func (s *Shaper) enrich(d *delta.Delta, object, old *delta.Object) (_, _ *delta.Object) {
	member := involvedMember(d.Resource)
	if member == "" {
		return object, old
	}
	i, ok := findInvolved(object.JSON(), member)
	if !ok { // as in a deleted Event of which only the identity is known
		return object, old
	}
	members := []byte(unknownMetadata)
	metadata, known := s.options.Enricher.Lookup(d.Object.Namespace(), i.ref)
	if known {
		members = metadata[1 : len(metadata)-1]
		s.metrics.Hits.Inc()
	} else {
		s.metrics.Misses.Inc()
	}
	object = i.add(object, members)
	if old != nil {
		if before, ok := findInvolved(old.JSON(), member); ok {
			if before.ref != i.ref {
				members = []byte(unknownMetadata)
			}
			old = before.add(old, members)
		}
	}
	return object, old
}

// involved is a reference in the JSON of an Event.
type involved struct {
	ref   delta.Reference
	empty bool
	end   int // the offset of its closing brace
}

var errFound = errors.New("found")

// findInvolved finds the reference, and reports whether there is one.
func findInvolved(event []byte, member string) (i involved, ok bool) {
	s := jsonscan.NewScanner(event)
	err := s.Object(func(key []byte) error {
		value, err := s.Value()
		if err != nil || string(key) != member || value[0] != '{' {
			return err
		}
		i.end = s.Offset() - 1
		i.empty = len(bytes.TrimSpace(value[1:len(value)-1])) == 0
		_ = json.Unmarshal(value, &i.ref) // a part that is no text stays empty
		return errFound
	})
	return i, errors.Is(err, errFound)
}

// add returns the object with members behind those of the reference. The API server lets a reference have none of these
// names.
func (i *involved) add(object *delta.Object, members []byte) *delta.Object {
	if len(members) == 0 {
		return object
	}
	raw := object.JSON()
	comma := ","
	if i.empty {
		comma = ""
	}
	return object.WithJSON(slices.Concat(raw[:i.end], []byte(comma), members, raw[i.end:]))
}
