package deploy_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestRelease installs the chart, edits its configuration, well and badly, and removes it, beside another release of the same name. The
// API server has no controllers here: a process takes the place of the Pods of each revision.
func TestRelease(t *testing.T) {
	t.Parallel()
	plane := controlplane.ForTest(t, controlplane.Options{})
	if err := load.CreateNamespaces(t.Context(), plane.Config(), "shop"); err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(plane.Config())
	for _, name := range []string{"audit", "other"} {
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
		if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	hook, second := webhooktest.Start(t), webhooktest.Start(t)
	values := func(resources, sink, url string) string {
		return "config: {cluster: test, deadLetters: {maxBytes: 16Mi}, sources: [{name: s, resources: " + resources + ", namespaces: {include: [shop]}}], " +
			"pipelines: [{name: p, sink: " + sink + "}], sinks: [{name: hook, webhook: {url: " + url + "}}]}\n"
	}
	before, after := values("[v1/configmaps]", "hook", hook.URL()), values("[v1/configmaps, v1/services]", "hook", hook.URL())
	release := func(values string, args ...string) {
		t.Helper()
		if out, err := helm(t.Context(), t, values, append(args, "--namespace", "audit", "--kubeconfig", plane.KubeconfigFile())...); err != nil {
			t.Fatal(out, err)
		}
	}
	start := func(m *manifests) *exporter { return m.start(t, plane, asProcess(t, m)) }
	deployed := func() *corev1.PodTemplateSpec {
		t.Helper()
		deployed, err := client.AppsV1().Deployments("audit").Get(t.Context(), "kubeferry", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return &deployed.Spec.Template
	}
	mounted := func() string { return configOf(&deployed().Spec) }
	digest := func() string { return deployed().Annotations["checksum/config"] }
	configMaps, services := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, schema.GroupVersionResource{Version: "v1", Resource: "services"}
	arrive := func(receiver *webhooktest.Receiver, resources ...schema.GroupVersionResource) {
		t.Helper()
		for _, resource := range resources {
			awaitAll(t, accepted(receiver), live(t.Context(), t, plane.Config(), resource))
		}
	}

	release(before, "install", "kubeferry", chart)
	first := renderChart(t, "kubeferry", "audit", before)
	if got, want := mounted(), configOf(&first.workload.Spec.Template.Spec); got != want {
		t.Errorf("the Deployment mounts %s, want %s", got, want)
	}
	testPodSecurity(t, plane, first)
	if out, err := exec.CommandContext(t.Context(), binary(t), "validate", "--allow-unset", "--config", writeConfig(t, first.file)).CombinedOutput(); err != nil {
		t.Errorf("the rendered configuration is not valid: %s", out)
	}
	old := start(first)
	old.await(t, "/status", "it leads", leads)
	old.await(t, "/readyz", "ready", isReady)
	arrive(hook, configMaps)

	// A release of the same name in another namespace, applied as strictly as the API server can.
	installMonitoring(t, plane)
	t.Run("schemas", func(t *testing.T) { testSchemas(t, plane) })
	other := renderChart(t, "kubeferry", "other", values("[v1/configmaps]", "hook", second.URL())+"podMonitor: {enabled: true}\nprometheusRule: {enabled: true}\n")
	if err := other.apply(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	beside := start(other)
	beside.await(t, "/status", "the other release leads too", leads)
	beside.await(t, "/readyz", "ready", isReady)
	arrive(second, configMaps)

	// A configuration that does not load.
	broken := values("[v1/configmaps]", "nowhere", hook.URL())
	release(broken, "upgrade", "kubeferry", chart)
	bad, err := client.CoreV1().ConfigMaps("audit").Get(t.Context(), mounted(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if digest() == first.workload.Spec.Template.Annotations["checksum/config"] {
		t.Error("a changed configuration does not change the Pods")
	}
	var exit *exec.ExitError
	out, err := exec.CommandContext(t.Context(), binary(t), "run", "--config", writeConfig(t, bad.Data["kubeferry.yaml"])).CombinedOutput()
	if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(string(out), "nowhere") {
		t.Errorf("the broken configuration: %v %s", err, out)
	}
	old.await(t, "/status", "the old one still leads", leads)
	arrive(hook, configMaps)

	// A configuration that loads: the Pods of the revision before go once one of the next has their state.
	release(after, "upgrade", "kubeferry", chart)
	next := start(renderChart(t, "kubeferry", "audit", after))
	next.await(t, "/status", "the new one has the state", func(_ int, body string) bool {
		return strings.Contains(body, `"role": "standby"`) && strings.Contains(body, `"inSync": true`)
	})
	old.process.Stop(30 * time.Second)
	next.await(t, "/status", "the new one leads", leads)
	next.await(t, "/readyz", "ready", isReady)
	arrive(hook, configMaps, services)
	ids := map[string]bool{}
	for _, record := range hook.Accepted() {
		var sent struct{ ID, Type string }
		if err := json.Unmarshal(record.Body, &sent); err != nil {
			t.Fatal(err)
		}
		if ids[sent.ID] || strings.HasSuffix(sent.Type, ".gap") {
			t.Errorf("the hand-over sent %s (%s)", sent.ID, sent.Type)
		}
		ids[sent.ID] = true
	}

	// Back, and away: what the other release has stays.
	release("", "rollback", "kubeferry", "1")
	if got, want := digest(), first.workload.Spec.Template.Annotations["checksum/config"]; got != want {
		t.Errorf("after the rollback the digest is %s, want %s", got, want)
	}
	all, err := client.CoreV1().ConfigMaps("audit").List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=kubeferry"})
	if err != nil || len(all.Items) != 1 || all.Items[0].Data["kubeferry.yaml"] != first.file {
		t.Errorf("%v: after four revisions the ConfigMaps are %v", err, all)
	}
	release("", "uninstall", "kubeferry")
	if roles, err := client.RbacV1().ClusterRoles().List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/part-of=kubeferry"}); err != nil ||
		len(roles.Items) != 1 || roles.Items[0].Name != other.role.Name {
		t.Errorf("%v, the ClusterRoles that are left: %v", err, roles)
	}
	arrive(second, configMaps)
}

// installMonitoring installs the CustomResourceDefinitions of PodMonitor and PrometheusRule, as the Prometheus Operator brings them.
func installMonitoring(t *testing.T, plane *controlplane.ControlPlane) {
	t.Helper()
	crds, err := programs.MonitoringCRDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	kubectl, err := programs.Kubectl().Path()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		cmd := exec.CommandContext(t.Context(), kubectl, append(args, "--kubeconfig", plane.KubeconfigFile(), "--cache-dir", t.TempDir())...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	file := func(plural string) string { return filepath.Join(crds, "monitoring.coreos.com_"+plural+".yaml") }
	if err := run("apply", "--server-side", "-f", file("podmonitors"), "-f", file("servicemonitors"), "-f", file("prometheusrules")); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) { // they are established a little before they are served
		err := run("get", "podmonitors.monitoring.coreos.com,servicemonitors.monitoring.coreos.com,prometheusrules.monitoring.coreos.com", "--all-namespaces")
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// configOf is the name of the ConfigMap that a Pod mounts.
func configOf(pod *corev1.PodSpec) string {
	return pod.Volumes[slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == "config" })].ConfigMap.Name
}

// asProcess is a rendered configuration with what differs where several replicas run on one host: ports and directories, and shorter
// times of the Lease.
func asProcess(t *testing.T, m *manifests) string {
	t.Helper()
	var config map[string]any
	if err := yaml.Unmarshal([]byte(m.file), &config); err != nil {
		t.Fatal(err)
	}
	config["stateDir"] = filepath.Join(t.TempDir(), "state")
	config["server"] = map[string]any{"listen": "127.0.0.1:0"}
	config["replication"] = map[string]any{"listen": "127.0.0.1:0"}
	config["leaderElection"] = map[string]any{
		"leaseName": m.loaded.LeaderElection.LeaseName, "leaseDuration": "3s", "renewDeadline": "2s", "retryPeriod": "500ms",
	}
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
