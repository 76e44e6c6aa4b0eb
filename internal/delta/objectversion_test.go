package delta

import (
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func FuzzPack(f *testing.F) {
	for _, text := range []string{
		"4f0c1e10-1267-466d-aa8d-59513e0e4c45", "4F0C1E10-1267-466D-AA8D-59513E0E4C45", "4f0c1e10x1267-466d-aa8d-59513e0e4c45",
		"4f0c1e1-01267-466d-aa8d-59513e0e4c45", "4f0c1e10-1267-466d-aa8d-59513e0e4c4-", "", "u11", "7", "07", "0", "+7", "18446744073709551616",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if packed, ok := packUID(types.UID(text)); ok && string(unpackUID(packed)) != text {
			t.Errorf("%q comes back as %q", text, unpackUID(packed))
		}
		if version, ok := packNumber(text); ok && strconv.FormatUint(version, 10) != text {
			t.Errorf("%q comes back as %d", text, version)
		}
	})
}

func TestPackUID(t *testing.T) {
	if _, ok := packUID("4f0c1e10-1267-466d-aa8d-59513e0e4c45"); !ok {
		t.Error("a UUID is not packed")
	}
	if _, ok := packNumber("812345"); !ok {
		t.Error("a number is not packed")
	}
}

func TestVersion(t *testing.T) {
	const uuid, other = "4f0c1e10-1267-466d-aa8d-59513e0e4c45", "4f0c1e10-1267-466d-aa8d-59513e0e4c46"
	for _, c := range []struct {
		uid             types.UID
		resourceVersion string
		same, equal     bool // as uuid at 7
	}{
		{uuid, "7", true, true}, {uuid, "8", true, false}, {other, "7", false, false}, {uuid, "07", true, false}, {"u", "7", false, false},
	} {
		a, b := NewVersion(uuid, "7"), NewVersion(c.uid, c.resourceVersion)
		if b.UID() != c.uid || b.ResourceVersion() != c.resourceVersion {
			t.Errorf("%s/%s comes back as %s/%s", c.uid, c.resourceVersion, b.UID(), b.ResourceVersion())
		}
		if a.SameObject(&b) != c.same || b.SameObject(&a) != c.same || a.Equal(&b) != c.equal || b.Equal(&a) != c.equal {
			t.Errorf("%s/%s: same object %v, equal %v", c.uid, c.resourceVersion, a.SameObject(&b), a.Equal(&b))
		}
	}
}
