package source

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math/bits"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// knownTable holds the known objects of one namespace by their names, as bytes without pointers: BenchmarkKnownSet has what an
// object takes. It is a hash table that grows by one bucket at a time (linear hashing), so that no change waits until all is
// copied.
type knownTable struct {
	buckets [][]byte // in each a few entries, one behind the other
	count   int
}

// perBucket is how many entries a bucket has, on average.
const perBucket = 8

var tableSeed = maphash.MakeSeed()

// bucketOf returns the bucket for a hash of a name.
func (t *knownTable) bucketOf(hash uint64) int {
	n := len(t.buckets)
	mask := 1<<bits.Len(uint(n-1)) - 1
	i := int(hash) & mask
	if i >= n { // that bucket is not split yet
		i &= mask >> 1
	}
	return i
}

// An entry is the length of the name, the name, the length of the rest, and the rest (appendValue).
func entryAt(bucket []byte, at int) (name, value []byte, end int) {
	part := func() []byte {
		length, n := binary.Uvarint(bucket[at:])
		from := at + n
		at = from + int(length)
		return bucket[from:at]
	}
	name = part()
	value = part()
	return name, value, at
}

// place is where a name stands in a table, or would: what of a bucket is its entry. It holds until the table changes.
type place struct {
	bucket, from, to int
	value            []byte // nil if the table does not have the name
}

func newKnownTable() *knownTable {
	return &knownTable{buckets: make([][]byte, 1)}
}

func (t *knownTable) locate(name string) place {
	p := place{bucket: t.bucketOf(maphash.String(tableSeed, name))}
	b := t.buckets[p.bucket]
	for ; p.from < len(b); p.from = p.to {
		var found, value []byte
		if found, value, p.to = entryAt(b, p.from); string(found) == name {
			p.value = value
			return p
		}
	}
	return p
}

// object returns what stands there.
func (p place) object() (object knownObject, ok bool) {
	if p.value == nil {
		return knownObject{}, false
	}
	return decodeValue(p.value), true
}

func (t *knownTable) find(name string) (object knownObject, ok bool) { return t.locate(name).object() }

// put puts an object where its name stands, or would.
func (t *knownTable) put(p place, name string, object *knownObject) {
	var room, entryRoom [320]byte
	value := appendValue(room[:0], object)
	if p.value != nil && len(p.value) == len(value) {
		copy(p.value, value)
		return
	}
	entry := append(binary.AppendUvarint(entryRoom[:0], uint64(len(name))), name...)
	entry = append(binary.AppendUvarint(entry, uint64(len(value))), value...)
	if p.value != nil {
		t.buckets[p.bucket] = slices.Concat(t.buckets[p.bucket][:p.from], entry, t.buckets[p.bucket][p.to:])
		return
	}
	b := t.buckets[p.bucket]
	if len(b)+len(entry) > cap(b) { // room for one more, and not for twice as many
		b = append(make([]byte, 0, len(b)+2*len(entry)), b...)
	}
	t.buckets[p.bucket] = append(b, entry...)
	if t.count++; t.count > perBucket*len(t.buckets) {
		t.split()
	}
}

func (t *knownTable) remove(name string) {
	if p := t.locate(name); p.value != nil {
		t.buckets[p.bucket] = slices.Concat(t.buckets[p.bucket][:p.from], t.buckets[p.bucket][p.to:])
		t.count--
	}
}

// split adds a bucket, and moves into it what belongs there.
func (t *knownTable) split() {
	n := len(t.buckets)
	first := n - 1<<(bits.Len(uint(n))-1)
	t.buckets = append(t.buckets, nil)
	var stayRoom, moveRoom [1024]byte
	stay, move := stayRoom[:0], moveRoom[:0]
	for b, at := t.buckets[first], 0; at < len(b); {
		name, _, end := entryAt(b, at)
		if t.bucketOf(maphash.Bytes(tableSeed, name)) == first {
			stay = append(stay, b[at:end]...)
		} else {
			move = append(move, b[at:end]...)
		}
		at = end
	}
	t.buckets[first], t.buckets[n] = bytes.Clone(stay), bytes.Clone(move)
}

// all yields the objects. They may be changed and removed meanwhile.
func (t *knownTable) all(yield func(string, knownObject) bool) {
	for _, b := range t.buckets { // put and remove make others, or change what at is behind
		for at := 0; at < len(b); {
			name, value, end := entryAt(b, at)
			if at = end; !yield(string(name), decodeValue(value)) {
				return
			}
		}
	}
}

const (
	valueText = 1 << iota
	valueRetained
	valueHad
)

// appendValue appends a first byte, then the round, the era, due, filtered, had if the byte has valueHad, and the version: packed, or as text
// (valueText).
func appendValue(b []byte, object *knownObject) []byte {
	uid, number, packed := object.version.Packed()
	var first byte
	if !packed {
		first |= valueText
	}
	if object.retained {
		first |= valueRetained
	}
	if object.had != 0 {
		first |= valueHad
	}
	b = binary.AppendUvarint(binary.AppendUvarint(append(b, first), uint64(object.round)), uint64(object.era))
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(object.due)), uint64(object.filtered))
	if object.had != 0 {
		b = binary.AppendUvarint(b, uint64(object.had))
	}
	if packed {
		return append(binary.AppendUvarint(b, number), uid[:]...)
	}
	return append(append(append(b, object.version.ResourceVersion()...), 0), object.version.UID()...)
}

func decodeValue(b []byte) (object knownObject) {
	first := b[0]
	b = b[1:]
	uvarint := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	object.retained = first&valueRetained != 0
	object.round, object.era = uint32(uvarint()), uint32(uvarint())
	object.due, object.filtered = PipelineSet(uvarint()), PipelineSet(uvarint())
	if first&valueHad != 0 {
		object.had = PipelineSet(uvarint())
	}
	if first&valueText != 0 {
		version, uid, _ := bytes.Cut(b, []byte{0})
		object.version = delta.NewVersion(types.UID(uid), string(version))
		return object
	}
	number := uvarint()
	object.version = delta.PackedVersion([16]byte(b), number)
	return object
}
