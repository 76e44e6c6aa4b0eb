package controlplane_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
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

// TestVersionsPage: docs/versions.md names the versions that the tests run.
func TestVersionsPage(t *testing.T) {
	page := read(t, "../../docs/versions.md")
	for program, in := range map[string]struct{ file, before string }{
		"Kubernetes API server": {"assets/go.mod", "k8s.io/kubernetes v"},
		"etcd":                  {"assets/go.mod", "go.etcd.io/etcd/server/v3 v"},
		"Kafka":                 {"../kafkatest/pom.xml", "<kafka.version>"},
		"NATS server":           {"../go.mod", "github.com/nats-io/nats-server/v2 v"},
	} {
		version := regexp.MustCompile(regexp.QuoteMeta(in.before) + `([0-9.]+)`).FindStringSubmatch(read(t, in.file))
		if version == nil {
			t.Errorf("%s: no version in %s", program, in.file)
		} else if row := fmt.Sprintf("\n| %s | %s |", program, version[1]); !strings.Contains(page, row) {
			t.Errorf("docs/versions.md has no row that begins with %q", row[1:])
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
