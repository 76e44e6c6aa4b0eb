package nats

import (
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestSubject(t *testing.T) {
	const template = "k8s.{cluster}.{group}.{resource}.{namespace}.{name}"
	for _, test := range []struct {
		fields sinks.Fields
		want   string
	}{
		{sinks.Fields{Cluster: "prod-eu_1", Resource: "pods", Namespace: "shop", Name: "web"}, "k8s.prod-eu_1.core.pods.shop.web"},
		{sinks.Fields{Cluster: "a.b", Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Name: "system:node"}, "k8s.a_b.rbac_authorization_k8s_io.clusterroles._.system:node"},
		{sinks.Fields{Cluster: "$SYS", Group: ">", Resource: "*", Namespace: " \t\r\n", Name: "ü\x7f\x00"}, "k8s._SYS._._.____.____"},
	} {
		if got := sinks.NewTemplate(template).Expand(&test.fields, tokenByte); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, test := range []struct {
		filter, inner string
		want          bool
	}{
		{"k8s.>", "k8s.*.*", true},
		{">", "k8s.*", true},
		{"k8s.*.*", "k8s.*.*", true},
		{"k8s.*.pods", "k8s.*.pods", true},
		{"*.*", "k8s.pods", true},
		{"k8s", "k8s", true},
		{"k8s.*", "k8s.*.*", false},
		{"k8s.*.*.*", "k8s.*.*", false},
		{"k8s.*.pods", "k8s.*.*", false},
		{"k8s.*.*.>", "k8s.*.*", false},
		{"k8s.>", "k8s", false},
		{"other.>", "k8s.*", false},
	} {
		if got := covers(test.filter, test.inner); got != test.want {
			t.Errorf("%s takes %s: got %t, want %t", test.filter, test.inner, got, test.want)
		}
	}
}

func TestOverlaps(t *testing.T) {
	for _, test := range []struct {
		a, b string
		want bool
	}{
		{"k8s.>", "k8s.*.*", true},
		{"k8s.prod.*", "k8s.*.*", true},
		{"*.prod.pods", "k8s.*.*", true},
		{"k8s.*.*", "k8s.*.*", true},
		{"k8s.*", "k8s.*.*", false},
		{"other.>", "k8s.*.*", false},
		{"k8s.*.pods", "k8s.*.nodes", false},
		{"k8s.*.*.>", "k8s.*.*", false},
	} {
		if got := overlaps(test.a, test.b); got != test.want {
			t.Errorf("%s and %s: got %t, want %t", test.a, test.b, got, test.want)
		}
		if got := overlaps(test.b, test.a); got != test.want {
			t.Errorf("%s and %s: got %t, want %t", test.b, test.a, got, test.want)
		}
	}
}

func TestPattern(t *testing.T) {
	for template, want := range map[string]string{
		"k8s.{cluster}.{name}":  "k8s.*.*",
		"k8s.x-{cluster}-y.all": "k8s.*.all",
		"k8s":                   "k8s",
		"{type}":                "*",
	} {
		if got := pattern(template); got != want {
			t.Errorf("%s: got %s, want %s", template, got, want)
		}
	}
}
