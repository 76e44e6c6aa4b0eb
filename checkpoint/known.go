package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeferry/kubeferry/delta"
)

var errKnown = errors.New("malformed known object")

// A known object is <namespace>/<name> → a byte that says how the rest is written, the resource version and the uid:
// compact where they are a number and a UUID, as text where they are not. With knownMore set in the first byte, who let
// the object pass and what is kept of it come in between.
const (
	knownCompact = 1
	knownText    = 2
	knownMore    = 0x80
)

func knownKey(k delta.Known) []byte {
	key := make([]byte, 0, len(k.Namespace)+1+len(k.Name))
	key = append(append(key, k.Namespace...), '/')
	return append(key, k.Name...)
}

func encodeKnown(k delta.Known) []byte {
	version, isNumber := delta.PackVersion(k.ResourceVersion)
	uid, isUUID := delta.PackUID(k.UID)
	out := make([]byte, 1, 1+3*binary.MaxVarintLen64+len(k.Previous)+len(k.ResourceVersion)+1+len(k.UID))
	if k.Passed != 0 || k.Previous != nil {
		out[0] = knownMore
		out = binary.AppendUvarint(out, uint64(k.Passed))
		out = binary.AppendUvarint(out, uint64(len(k.Previous)))
		out = append(out, k.Previous...)
	}
	if isNumber && isUUID {
		out[0] |= knownCompact
		out = binary.AppendUvarint(out, version)
		return append(out, uid[:]...)
	}
	out[0] |= knownText
	out = append(out, k.ResourceVersion...)
	out = append(out, 0)
	return append(out, k.UID...)
}

// decodeMore reads what knownMore announces, and returns the rest.
func decodeMore(k *delta.Known, value []byte) ([]byte, error) {
	passed, n := binary.Uvarint(value)
	if n <= 0 || passed > math.MaxUint16 {
		return nil, errKnown
	}
	k.Passed, value = uint16(passed), value[n:]
	length, n := binary.Uvarint(value)
	if n <= 0 || length > uint64(len(value)-n) {
		return nil, errKnown
	}
	value = value[n:]
	if length > 0 {
		k.Previous = bytes.Clone(value[:length])
	}
	return value[length:], nil
}

func decodeKnown(key, value []byte) (delta.Known, error) {
	namespace, name, ok := bytes.Cut(key, []byte("/"))
	if !ok || len(value) == 0 {
		return delta.Known{}, errKnown
	}
	k := delta.Known{Namespace: string(namespace), Name: string(name)}
	kind, value := value[0], value[1:]
	if kind&knownMore != 0 {
		var err error
		if value, err = decodeMore(&k, value); err != nil {
			return delta.Known{}, err
		}
	}
	switch kind &^ knownMore {
	case knownCompact:
		version, n := binary.Uvarint(value)
		if n <= 0 || len(value) != n+16 {
			return delta.Known{}, errKnown
		}
		k.ResourceVersion = strconv.FormatUint(version, 10)
		k.UID = delta.UnpackUID([16]byte(value[n:]))
	case knownText:
		version, uid, ok := bytes.Cut(value, []byte{0})
		if !ok {
			return delta.Known{}, errKnown
		}
		k.ResourceVersion, k.UID = string(version), types.UID(uid)
	default:
		return delta.Known{}, errKnown
	}
	return k, nil
}
