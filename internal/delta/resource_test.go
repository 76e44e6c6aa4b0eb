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

func TestParseWildcard(t *testing.T) {
	for text, want := range map[string]string{
		"apps/*": "apps/*", "*.apps": "apps/*", "*.example.com": "example.com/*", "apps/v1/*": "apps/v1/*", "v1/*": "v1/*",
		"*": "", "*/*": "", "*.": "", "apps*": "", "apps/v*/x": "", "*.*.example.com": "", "example.*/v1/*": "", "apps/v1/deploy*": "", "Apps/*": "",
	} {
		gvr, ok := ParseWildcard(text)
		if got := ResourceName(gvr); ok && got != want || ok != (want != "") {
			t.Errorf("%q: got %q, %v; want %q", text, got, ok, want)
		}
	}
}

func TestCovers(t *testing.T) {
	for text, want := range map[string]bool{
		"apps/*": true, "apps/v1/*": true, "apps/v1/deployments": true, "apps/v1beta1/*": false, "apps/v1/daemonsets": false, "v1/*": false, "example.com/*": false,
	} {
		other, ok := ParseWildcard(text)
		if !ok {
			other, _ = ParseResource(text)
		}
		deployments, _ := ParseResource("apps/v1/deployments")
		if got := Covers(other, deployments); got != want {
			t.Errorf("%s: got %v", text, got)
		}
	}
}
