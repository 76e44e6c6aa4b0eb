package controlplane_test

import (
	"encoding/json"
	"os/exec"
	"testing"
)

// TestOneVersionOfEachModule: what the API server, kubeferry and the demo import is compiled once for all of them, since they have the same
// versions of it. One other version, such as of golang.org/x/net, would have client-go and k8s.io/api compiled twice, which takes minutes.
// Where this fails, `go get` the newer version in the other module, and `go mod tidy` there.
func TestOneVersionOfEachModule(t *testing.T) {
	versions := map[string]map[string]string{} // of a module, by go.mod
	for _, file := range []string{"../../go.mod", "../go.mod", "assets/go.mod"} {
		out, err := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		var parsed struct {
			Require []struct{ Path, Version string }
		}
		if err := json.Unmarshal(out, &parsed); err != nil {
			t.Fatal(err)
		}
		for _, r := range parsed.Require {
			if versions[r.Path] == nil {
				versions[r.Path] = map[string]string{}
			}
			versions[r.Path][file] = r.Version
		}
	}
	for module, in := range versions {
		distinct := map[string]bool{}
		for _, version := range in {
			distinct[version] = true
		}
		if len(distinct) > 1 {
			t.Errorf("%s: %v", module, in)
		}
	}
}
