package kafka

import "testing"

func TestFitting(t *testing.T) {
	for _, test := range []struct {
		template, topic string
		want            bool
	}{
		{"k8s.{group}.{resource}", "k8s.apps.deployments", true},
		{"k8s.{group}.{resource}", "k8s.rbac.authorization.k8s.io.roles", true},
		{"k8s.{group}.{resource}", "k8s.apps", false},
		{"k8s.{group}.{resource}", "k8sxapps.deployments", false},
		{"k8s.{group}.{resource}", "my-k8s.apps.deployments", false},
		{"{namespace}-log", "shop-log", true},
		{"{namespace}-log", "shop-logs", false},
		{"{namespace}-log", "-log", false},
		{"audit", "audit", true},
		{"audit", "audit.2", false},
	} {
		if got := fitting(test.template).MatchString(test.topic); got != test.want {
			t.Errorf("%s of %s: got %t, want %t", test.topic, test.template, got, test.want)
		}
	}
}
