package delta

import "testing"

func TestParseResource(t *testing.T) {
	for text, want := range map[string]string{
		"apps/v1/deployments": "apps/v1/deployments", "deployments.v1.apps": "apps/v1/deployments",
		"v1/pods": "v1/pods", "pods.v1": "v1/pods", "pods.v1.": "v1/pods",
		"widgets.v1beta1.example.com": "example.com/v1beta1/widgets",
		"pods":                        "", "deployments.apps": "", "widgets.example.com": "", "apps/deployments.v1": "apps/deployments.v1",
		"/v1/pods": "", "v1/Pods": "", "Pods.v1": "", "v1/*": "", ".v1.apps": "", "apps/v1/": "",
	} {
		gvr, err := ParseResource(text)
		if got := ResourceName(gvr); err == nil && got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", text, got, err, want)
		}
	}
}
