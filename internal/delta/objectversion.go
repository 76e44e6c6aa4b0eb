package delta

import (
	"strconv"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/types"
)

// Version names one version of one object by uid and resource version. It takes 32 bytes, because there may be a million of
// them. Compare versions with [Version.Equal], and not with ==.
type Version struct {
	uid    [16]byte
	number uint64
	// text is set where the uid is no UUID in canonical form, or the resource version no number: no API server makes them.
	text *versionText
}

type versionText struct {
	uid             types.UID
	resourceVersion string
}

// NewVersion packs a uid and a resource version.
func NewVersion(uid types.UID, resourceVersion string) Version {
	packed, isUUID := packUID(uid)
	number, isNumber := packNumber(resourceVersion)
	if !isUUID || !isNumber {
		return Version{text: &versionText{uid, resourceVersion}}
	}
	return Version{uid: packed, number: number}
}

// PackedVersion makes a Version of the parts that [Version.Packed] returns.
func PackedVersion(uid [16]byte, number uint64) Version { return Version{uid: uid, number: number} }

// Packed returns the uid and the resource version in binary form. ok is false if one of them has no such form: then use [Version.UID] and
// [Version.ResourceVersion].
func (v *Version) Packed() (uid [16]byte, number uint64, ok bool) {
	return v.uid, v.number, v.text == nil
}

// UID returns the uid of the object.
func (v *Version) UID() types.UID {
	if v.text != nil {
		return v.text.uid
	}
	return unpackUID(v.uid)
}

// ResourceVersion returns the resource version.
func (v *Version) ResourceVersion() string {
	if v.text != nil {
		return v.text.resourceVersion
	}
	return strconv.FormatUint(v.number, 10)
}

// SameObject reports whether both are versions of one object.
func (v *Version) SameObject(other *Version) bool {
	if v.text != nil || other.text != nil {
		return v.UID() == other.UID()
	}
	return v.uid == other.uid
}

// Equal reports whether both are the same version of one object.
func (v *Version) Equal(other *Version) bool {
	if v.text != nil || other.text != nil {
		return v.UID() == other.UID() && v.ResourceVersion() == other.ResourceVersion()
	}
	return v.uid == other.uid && v.number == other.number
}

// Version returns the uid and the resource version of the object.
func (o *Object) Version() Version { return NewVersion(o.UID(), o.ResourceVersion()) }

// packUID gives the 16 bytes of a uid that is a UUID in its canonical form, as all uids of an API server are, and
// reports whether it is one.
func packUID(uid types.UID) (packed [16]byte, ok bool) {
	packed, err := uuid.Parse(string(uid))
	return packed, err == nil && len(uid) == 36 && strings.ToLower(string(uid)) == string(uid) // it reads other forms, too
}

// unpackUID is the reverse of packUID.
func unpackUID(packed [16]byte) types.UID { return types.UID(uuid.UUID(packed).String()) }

// packNumber gives the number that a resource version is, and reports whether it is one that is written in the usual
// form, and not 0.
func packNumber(resourceVersion string) (uint64, bool) {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil || version == 0 || resourceVersion[0] == '0' || resourceVersion[0] == '+' {
		return 0, false
	}
	return version, true
}
