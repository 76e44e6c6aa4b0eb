package delta

import (
	"encoding/hex"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// PackUID gives the 16 bytes of a uid that is a UUID in its canonical form, as all uids of an API server are, and
// reports whether it is one.
func PackUID(uid types.UID) (packed [16]byte, ok bool) {
	if len(uid) != 36 || uid[8] != '-' || uid[13] != '-' || uid[18] != '-' || uid[23] != '-' {
		return packed, false
	}
	n := 0
	for i := 0; i < len(uid); i += 2 {
		if uid[i] == '-' {
			i++
		}
		high, low := digit(uid[i]), digit(uid[i+1])
		if high > 15 || low > 15 {
			return [16]byte{}, false
		}
		packed[n] = high<<4 | low
		n++
	}
	return packed, true
}

// digit is the value of a lower-case hexadecimal digit; of anything else it is more than 15.
func digit(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	default:
		return 0xff
	}
}

// UnpackUID is the reverse of [PackUID].
func UnpackUID(packed [16]byte) types.UID {
	var text [36]byte
	hex.Encode(text[:8], packed[:4])
	hex.Encode(text[9:13], packed[4:6])
	hex.Encode(text[14:18], packed[6:8])
	hex.Encode(text[19:23], packed[8:10])
	hex.Encode(text[24:], packed[10:])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return types.UID(text[:])
}

// PackVersion gives the number that a resource version is, and reports whether it is one that is written in the usual
// form, and not 0.
func PackVersion(resourceVersion string) (uint64, bool) {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || version == 0 || resourceVersion[0] == '0' || resourceVersion[0] == '+' {
		return 0, false
	}
	return version, true
}
