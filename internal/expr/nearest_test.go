package expr

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestNearest(t *testing.T) {
	names := []string{"sources", "sinks", "maxBytes", "maxRecords"}
	for text, want := range map[string]string{
		"soruces": "sources", "sink": "sinks", "SINKS": "sinks", "maxbytes": "maxBytes", "max_records": "maxRecords",
		"x": "", "": "", "cluster": "", "sauces": "sources",
	} {
		if got := Nearest(text, names); got != want {
			t.Errorf("Nearest(%q): got %q, want %q", text, got, want)
		}
	}
}

// TestMetadataFields compares the fields with those of apimachinery.
func TestMetadataFields(t *testing.T) {
	var want []string
	for _, field := range reflect.VisibleFields(reflect.TypeFor[metav1.ObjectMeta]()) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		want = append(want, name)
	}
	slices.Sort(want)
	if got := MetadataFields(); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
