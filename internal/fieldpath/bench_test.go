package fieldpath

import (
	"reflect"
	"strings"
	"testing"
)

// BenchmarkDifferJSON compares two versions of an object of 6 KB, by their JSON and after decoding both.
func BenchmarkDifferJSON(b *testing.B) {
	container := `{"name":"web","image":"registry.example/web:1.2.3","env":[` +
		strings.Repeat(`{"name":"KEY","value":"a value of some length, as they are"},`, 70) +
		`{"name":"LAST","value":"1"}],"resources":{"limits":{"cpu":"500m"}}}`
	version := func(resourceVersion, phase string) string {
		return `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-0","namespace":"shop","resourceVersion":"` + resourceVersion +
			`","labels":{"app":"web"}},"spec":{"containers":[` + container + `]},"status":{"phase":"` + phase + `","conditions":[` +
			strings.Repeat(`{"type":"Ready","status":"True","lastTransitionTime":"2026-11-21T00:12:03Z"},`, 20) + `{}]}}`
	}
	before, after := []byte(version("234", "Pending")), []byte(version("235", "Running"))
	for _, paths := range []string{"metadata.labels", "spec", "status.phase", "spec.containers[*].image", "spec metadata.labels"} {
		set := NewSet(parseAll(b, strings.Fields(paths))...)
		b.Run("scan/"+strings.ReplaceAll(paths, " ", "+"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := set.DifferJSON(before, after); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("decode/spec", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			reflect.DeepEqual(decode(b, string(before))["spec"], decode(b, string(after))["spec"])
		}
	})
}
