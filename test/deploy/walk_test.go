package deploy_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/alerts"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// testWalk goes on where the commands of docs/install.md have installed the release audit, as an operator would: up to /status, the
// dashboard and the alert that show a fault. A process takes the place of the Pods, and Prometheus' engine that of its server.
func testWalk(t *testing.T, plane *controlplane.ControlPlane) {
	installMonitoring(t, plane)
	release := func(args ...string) string {
		t.Helper()
		out, err := helm(t.Context(), t, "", append(args, "--namespace", "audit", "--kubeconfig", plane.KubeconfigFile())...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	release("upgrade", "audit", chart, "--reuse-values", "--set", "podMonitor.enabled=true,prometheusRule.enabled=true,dashboard.enabled=true")
	m := readManifests(t, chart, []byte(release("get", "manifest", "audit")))
	testPodSecurity(t, plane, m)
	notes := regexp.MustCompile(`(deployment|service)/(\S+)`).FindAllStringSubmatch(release("get", "notes", "audit"), -1)
	if len(notes) != 2 {
		t.Errorf("the notes name %v", notes)
	}
	for _, named := range notes {
		if !slices.Contains(names(m.objects), strings.ToUpper(named[1][:1])+named[1][1:]+" audit/"+named[2]) {
			t.Errorf("the notes name %s, which is not in the release", named[0])
		}
	}

	hook, secrets := webhooktest.StartTLS(t), t.TempDir()
	write(t, filepath.Join(secrets, "token"), "secret")
	write(t, filepath.Join(secrets, "ca.crt"), authority(hook))
	run := func() *exporter {
		return m.start(t, plane, strings.ReplaceAll(asProcess(t, m), "/etc/hook", secrets), "HOOK_URL="+hook.URL(), "SSL_CERT_FILE="+filepath.Join(secrets, "ca.crt"))
	}
	e := run()
	e.await(t, "/status", "it leads", leads)
	run()
	status := func(parts ...string) {
		t.Helper()
		e.await(t, "/status", fmt.Sprintf("it has %q", parts), func(_ int, body string) bool {
			return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(body, part) })
		})
	}
	status(`"problems": []`, `"resource": "apps/v1/deployments"`, `"state": "watching"`, `"name": "changes"`, `"state": "available"`, `"delivered": `)
	const job = "audit/audit-kubeferry"
	server, at := alerts.NewEvaluator(rulesOf(t, m.objects)), time.Now()
	scrape := func(d time.Duration) (firing []string) {
		t.Helper()
		samples := e.scrape(t, `instance="a",job="`+job+`",namespace="audit"`)
		for end := at.Add(d); at.Before(end); {
			var err error
			at = at.Add(30 * time.Second)
			if firing, err = server.Scrape(t.Context(), at, samples); err != nil {
				t.Fatal(err)
			}
		}
		return firing
	}
	panels := panelsOf(t, m)
	shows := func(panel, want string) {
		t.Helper()
		expr := strings.NewReplacer("$job", job, "$__rate_interval", "5m").Replace(panels[panel])
		if got, err := server.Query(t.Context(), expr, at); err != nil || !regexp.MustCompile(want).MatchString(got.String()) {
			t.Errorf("the panel %q shows %v, %v, want %s", panel, got, err, want)
		}
	}
	if firing := scrape(time.Minute); len(firing) > 0 {
		t.Errorf("%q fire while all is well", firing)
	}
	shows("Sinks that are away", "^{} => 0 @")
	shows("Leaders", "^{.*} => 1 @")

	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	status("sink hook fails", "503", `"state": "away"`)
	if got, want := scrape(3*time.Minute+30*time.Second), `KubeferrySinkFails{instance="a", job="`+job+`", namespace="audit", pipeline="changes"}`; !slices.Equal(got, []string{want}) {
		t.Errorf("%q fire while the sink fails, want %s", got, want)
	}
	shows("Sinks that are away", "^{} => 1 @")
	shows("Changes that wait", `^{pipeline="changes"} => [1-9]`)
	hook.Use(webhooktest.Accept())
	status(`"problems": []`, `"state": "available"`)
	if firing := scrape(time.Minute); len(firing) > 0 {
		t.Errorf("%q fire when all is well again", firing)
	}
	shows("Sinks that are away", "^{} => 0 @")
}

// panelsOf returns the first query of each panel of the dashboard that a release installs.
func panelsOf(t *testing.T, m *manifests) map[string]string {
	t.Helper()
	queries := map[string]string{}
	for _, object := range m.objects {
		if !strings.HasSuffix(object.GetName(), "-dashboard") {
			continue
		}
		for _, text := range object.Object["data"].(map[string]any) {
			var board dashboard
			if err := json.Unmarshal([]byte(text.(string)), &board); err != nil {
				t.Fatal(err)
			}
			for _, panel := range board.Panels {
				if len(panel.Targets) > 0 {
					queries[panel.Title] = panel.Targets[0].Expr
				}
			}
		}
	}
	return queries
}

// scrape returns the samples of /metrics, with the labels that Prometheus adds.
func (e *exporter) scrape(t *testing.T, target string) map[string]float64 {
	t.Helper()
	status, body, err := e.ask(t.Context(), "/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatal(status, err)
	}
	samples := map[string]float64{}
	for _, sample := range regexp.MustCompile(`(?m)^(kubeferry_\w+)(?:\{(.*)\})? (\S+)$`).FindAllStringSubmatch(string(body), -1) {
		own := strings.ReplaceAll(","+sample[2], `,namespace="`, `,exported_namespace="`)
		if samples[sample[1]+"{"+target+strings.TrimSuffix(own, ",")+"}"], err = strconv.ParseFloat(sample[3], 64); err != nil {
			t.Fatal(err)
		}
	}
	return samples
}
