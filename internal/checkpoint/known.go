package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

var errKnown = errors.New("malformed known object")

// A known object is <namespace>/<name> → a first byte, then, if its flag is set, Due (knownDue), then Filtered and the length of
// Previous (knownMore), then the resource version and the uid: packed if they are a number and a UUID (knownCompact), else as text
// (knownText). Only older versions wrote a Previous here; now the length is 0, and it is under the same key in previousBucket.
const (
	knownCompact = 1
	knownText    = 2
	knownDue     = 0x40
	knownMore    = 0x80
)

func appendKnownKey(b []byte, k *delta.Known) []byte {
	b = append(append(b, k.Namespace...), '/')
	return append(b, k.Name...)
}

func appendKnown(b []byte, k *delta.Known) []byte {
	uid, number, compact := k.Version.Packed()
	kind := byte(knownText)
	if compact {
		kind = knownCompact
	}
	if k.Due != 0 {
		kind |= knownDue
	}
	if k.Filtered != 0 {
		kind |= knownMore
	}
	b = append(b, kind)
	if k.Due != 0 {
		b = binary.AppendUvarint(b, k.Due)
	}
	if kind&knownMore != 0 {
		b = binary.AppendUvarint(b, k.Filtered)
		b = binary.AppendUvarint(b, 0)
	}
	if compact {
		b = binary.AppendUvarint(b, number)
		return append(b, uid[:]...)
	}
	b = append(append(b, k.Version.ResourceVersion()...), 0)
	return append(b, k.Version.UID()...)
}

// decodeKnown reads a known object. Its Previous shares memory with the value.
func decodeKnown(key, value []byte) (delta.Known, error) {
	namespace, name, ok := bytes.Cut(key, []byte("/"))
	if !ok || len(value) == 0 {
		return delta.Known{}, errKnown
	}
	k := delta.Known{Namespace: string(namespace), Name: string(name)}
	in := reader{rest: value}
	kind := in.byte()
	if kind&knownDue != 0 {
		k.Due = in.uvarint()
	}
	if kind&knownMore != 0 {
		k.Filtered = in.uvarint()
		if previous := in.bytes(); len(previous) > 0 {
			k.Previous = previous
		}
	}
	switch kind &^ (knownDue | knownMore) {
	case knownCompact:
		version := in.uvarint()
		if len(in.rest) != 16 {
			return delta.Known{}, errKnown
		}
		k.Version = delta.PackedVersion([16]byte(in.rest), version)
	case knownText:
		version, uid, ok := bytes.Cut(in.rest, []byte{0})
		if !ok {
			return delta.Known{}, errKnown
		}
		k.Version = delta.NewVersion(types.UID(uid), string(version))
	default:
		return delta.Known{}, errKnown
	}
	if in.bad {
		return delta.Known{}, errKnown
	}
	return k, nil
}
