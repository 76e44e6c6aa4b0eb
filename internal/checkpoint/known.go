package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/internal/delta"
)

var errKnown = errors.New("malformed known object")

// A known object is <namespace>/<name> → a first byte, then Due if the byte has the flag knownDue, then Filtered if it has knownFiltered,
// then Had if it has knownHad, then Era if it has knownEra, then the resource version and the uid: packed if they are a number and a UUID (knownCompact), else as text (knownText). If it has
// knownRetained, what is retained of the object is under the same key in the bucket previous/<watch>.
const (
	knownCompact  = 1
	knownText     = 2
	knownHad      = 0x08
	knownEra      = 0x10
	knownRetained = 0x20
	knownDue      = 0x40
	knownFiltered = 0x80
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
	if k.Retained {
		kind |= knownRetained
	}
	if k.Due != 0 {
		kind |= knownDue
	}
	if k.Filtered != 0 {
		kind |= knownFiltered
	}
	if k.Had != 0 {
		kind |= knownHad
	}
	if k.Era != 0 {
		kind |= knownEra
	}
	b = append(b, kind)
	if k.Due != 0 {
		b = binary.AppendUvarint(b, k.Due)
	}
	if k.Filtered != 0 {
		b = binary.AppendUvarint(b, k.Filtered)
	}
	if k.Had != 0 {
		b = binary.AppendUvarint(b, k.Had)
	}
	if k.Era != 0 {
		b = binary.AppendUvarint(b, uint64(k.Era))
	}
	if compact {
		b = binary.AppendUvarint(b, number)
		return append(b, uid[:]...)
	}
	b = append(append(b, k.Version.ResourceVersion()...), 0)
	return append(b, k.Version.UID()...)
}

// decodeKnown reads a known object, without what is retained of it.
func decodeKnown(key, value []byte) (delta.Known, error) {
	namespace, name, ok := bytes.Cut(key, []byte("/"))
	if !ok || len(value) == 0 {
		return delta.Known{}, errKnown
	}
	k := delta.Known{Namespace: string(namespace), Name: string(name)}
	in := reader{rest: value}
	kind := in.byte()
	k.Retained = kind&knownRetained != 0
	if kind&knownDue != 0 {
		k.Due = in.uvarint()
	}
	if kind&knownFiltered != 0 {
		k.Filtered = in.uvarint()
	}
	if kind&knownHad != 0 {
		k.Had = in.uvarint()
	}
	if kind&knownEra != 0 {
		k.Era = uint32(in.uvarint()) //nolint:gosec // appendKnown wrote no more
	}
	switch kind &^ (knownEra | knownHad | knownRetained | knownDue | knownFiltered) {
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
