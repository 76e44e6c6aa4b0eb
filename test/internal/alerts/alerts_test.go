package alerts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

func TestMain(m *testing.M) {
	assets.Must(programs.Promtool().Build)
	os.Exit(m.Run())
}

// TestRules has promtool run the unit tests of the chart's alerts, which leave none out. That a kubeferry has these metrics is shown in
// test/e2e and test/deploy.
func TestRules(t *testing.T) {
	files := filepath.Join("..", "..", "..", "deploy", "chart", "files")
	promtool, err := programs.Promtool().Path()
	if err != nil {
		t.Fatal(err)
	}
	tests := filepath.Join(files, "alerts_test.yaml")
	if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", tests).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	text, err := os.ReadFile(tests)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := alerts.Load(filepath.Join(files, "alerts.yaml"))
	if err != nil || len(rules) == 0 {
		t.Fatalf("%d rules: %v", len(rules), err)
	}
	for _, rule := range rules {
		if !strings.Contains(string(text), "alertname: "+rule.Alert+"\n        exp_alerts:\n          - exp_labels:") {
			t.Errorf("no unit test has %s fire", rule.Alert)
		}
	}
}
