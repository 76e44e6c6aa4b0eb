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
		if packed, ok := PackUID(types.UID(text)); ok && string(UnpackUID(packed)) != text {
			t.Errorf("%q comes back as %q", text, UnpackUID(packed))
		}
		if version, ok := PackVersion(text); ok && strconv.FormatUint(version, 10) != text {
			t.Errorf("%q comes back as %d", text, version)
		}
	})
}

func TestPackUID(t *testing.T) {
	if _, ok := PackUID("4f0c1e10-1267-466d-aa8d-59513e0e4c45"); !ok {
		t.Error("a UUID is not packed")
	}
	if _, ok := PackVersion("812345"); !ok {
		t.Error("a number is not packed")
	}
}
