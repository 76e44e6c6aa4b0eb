// Package deploy_test takes deploy/ at its word: a real API server accepts the manifests, and kubeferry does its
// whole job with what they grant.
package deploy_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// closing is what the program may take after shutdown.grace; see cmd/exporter/app/app.go.
const closing = 10 * time.Second

// TestManifestsAgree checks what the API server does not check.
func TestManifestsAgree(t *testing.T) {
	for _, name := range []string{"base", "example"} {
		t.Run(name, func(t *testing.T) {
			m := render(t, name)
			checkRights(t, m)
			checkReplicas(t, m)
			pod := m.workload.Spec.Template.Spec
			if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < m.loaded.Shutdown.Grace+closing {
				t.Errorf("terminationGracePeriodSeconds is %v, but the program may take %v", grace, m.loaded.Shutdown.Grace+closing)
			}
			container := m.container()
			if port := fmt.Sprint(":", container.Ports[0].ContainerPort); port != m.loaded.Server.Listen {
				t.Errorf("the container's port is %s, but the program listens on %s", port, m.loaded.Server.Listen)
			}
			if container.LivenessProbe.HTTPGet.Path != "/healthz" || container.ReadinessProbe.HTTPGet.Path != "/readyz" {
				t.Error("wrong probes")
			}
			if !slices.ContainsFunc(container.Env, func(v corev1.EnvVar) bool {
				return v.Name == "GOMEMLIMIT" && v.ValueFrom.ResourceFieldRef.Resource == "limits.memory"
			}) {
				t.Error("no GOMEMLIMIT from limits.memory")
			}
		})
	}
}

func TestInCluster(t *testing.T) {
	plane := controlplane.ForTest(t, controlplane.Options{})
	if err := load.CreateNamespaces(t.Context(), plane.Config(), "shop", "team-a"); err != nil {
		t.Fatal(err)
	}
	base := render(t, "base")
	if err := base.apply(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	t.Run("pod security", func(t *testing.T) { testPodSecurity(t, plane, base) })
	t.Run("base", func(t *testing.T) { testBase(t, plane, base) })
	t.Run("image", func(t *testing.T) { testImage(t, plane, base) })
	t.Run("forbidden", func(t *testing.T) { testForbidden(t, plane, base) })
	t.Run("example", func(t *testing.T) { testExample(t, plane) })
}

// testPodSecurity creates the Pod that a controller would make of the Deployment, in its namespace.
func testPodSecurity(t *testing.T, plane *controlplane.ControlPlane, m *manifests) {
	client := kubernetes.NewForConfigOrDie(plane.Config())
	namespace, err := client.CoreV1().Namespaces().Get(t.Context(), m.workload.Namespace, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if level := namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
		t.Errorf("the namespace enforces %q, want restricted", level)
	}
	template := m.workload.Spec.Template
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "as-written", Namespace: m.workload.Namespace, Labels: template.Labels},
		Spec:       *template.Spec.DeepCopy(),
	}
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, strict); err != nil {
		t.Errorf("the Pod is not admitted: %v", err)
	}
	// Does the API server look at all?
	pod.Name, pod.Spec.Containers[0].SecurityContext = "loosened", nil
	if _, err := client.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, strict); !apierrors.IsForbidden(err) {
		t.Errorf("got %v for a Pod without a security context, want forbidden", err)
	}
}

// testBase runs the two replicas, and kills the one that leads.
func testBase(t *testing.T, plane *controlplane.ControlPlane, m *manifests) {
	bus := natstest.Start(t, nil)
	run := func() *exporter {
		return m.start(t, plane, strings.Replace(asProcess(t, m), "tls://nats.nats.svc:4222", bus.URL(), 1), "CLUSTER_NAME=test")
	}
	arrive := func() {
		t.Helper()
		wanted := m.live(t, plane)
		awaitAll(t, func(ctx context.Context) [][]byte {
			messages, err := bus.ReadAll(ctx, "KUBEFERRY")
			if err != nil {
				return nil // the stream comes with the first record
			}
			var bodies [][]byte
			for _, message := range messages {
				bodies = append(bodies, message.Data)
			}
			return bodies
		}, wanted)
	}
	leader, standby := run(), run()
	leader.await(t, "/readyz", "ready", isReady)
	standby.await(t, "/readyz", "ready", isReady)
	if _, body, err := leader.ask(t.Context(), "/status"); err != nil || !leads(0, string(body)) {
		leader, standby = standby, leader
	}
	leader.await(t, "/status", "one leads", leads)
	standby.await(t, "/status", "the other has its state", func(_ int, body string) bool {
		return strings.Contains(body, `"role": "standby"`) && strings.Contains(body, `"inSync": true`)
	})
	testMetrics(t, leader)
	arrive()
	leader.process.Kill()
	standby.await(t, "/status", "the other leads", leads)
	standby.await(t, "/readyz", "ready", isReady)
	arrive()
	for _, line := range standby.lines(t) {
		if line["level"] == "ERROR" {
			t.Errorf("the log of the new leader: %v", line)
		}
	}
}

// accepted reads what a receiver has.
func accepted(receiver *webhooktest.Receiver) func(context.Context) [][]byte {
	return func(context.Context) [][]byte {
		var bodies [][]byte
		for _, record := range receiver.Accepted() {
			bodies = append(bodies, record.Body)
		}
		return bodies
	}
}

// testForbidden watches one resource more than the ServiceAccount may, and grants it then.
func testForbidden(t *testing.T, plane *controlplane.ControlPlane, m *manifests) {
	receiver := webhooktest.Start(t)
	const file = `
cluster: test
sources:
  - {name: all, resources: [v1/configmaps, v1/secrets], namespaces: {exclude: [kube-system]}}
pipelines:
  - {name: hook, sink: hook}
sinks:
  - name: hook
    webhook: {url: "%s"}
server: {listen: "127.0.0.1:0"}
`
	e := m.start(t, plane, fmt.Sprintf(file, receiver.URL()))
	const rule = `ClusterRole: {apiGroups: [""], resources: ["secrets"], verbs: [list, watch]}`
	e.await(t, "/readyz", "the forbidden resource is named", func(status int, body string) bool {
		return status == http.StatusServiceUnavailable && strings.Contains(body, "secrets is forbidden")
	})
	e.await(t, "/status", "the forbidden resource is named, and the other one watched", func(_ int, body string) bool {
		return strings.Contains(body, `"state": "failing"`) && strings.Contains(body, "secrets is forbidden") &&
			strings.Contains(body, `"state": "watching"`)
	})
	said := slices.ContainsFunc(e.lines(t), func(line map[string]any) bool {
		return line["level"] == "WARN" && line["resource"] == "v1/secrets" && line["rule"] == rule
	})
	if !said {
		t.Errorf("no warning names the rule %s", rule)
	}
	received := accepted(receiver)
	configMaps, secrets := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	awaitAll(t, received, live(t.Context(), t, plane.Config(), configMaps)) // the other watch goes on

	roles := kubernetes.NewForConfigOrDie(plane.Config()).RbacV1().ClusterRoles()
	role, err := roles.Get(t.Context(), m.role.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = append(role.Rules, rbacv1.PolicyRule{
		APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list", "watch"},
	})
	if _, err := roles.Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.await(t, "/readyz", "ready once the rule is granted", isReady)
	awaitAll(t, received, live(t.Context(), t, plane.Config(), secrets))
}

// testExample replaces the base by one replica of the example, whose custom resource does not exist at first.
func testExample(t *testing.T, plane *controlplane.ControlPlane) {
	m := render(t, "example")
	leases := kubernetes.NewForConfigOrDie(plane.Config()).CoordinationV1().Leases(m.lease.Namespace)
	if err := leases.Delete(t.Context(), m.lease.Name, metav1.DeleteOptions{}); err != nil { // it has what the replicas of the base hold
		t.Fatal(err)
	}
	if err := m.apply(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	receiver := webhooktest.Start(t)
	secret := filepath.Join(t.TempDir(), "secret")
	key := []byte(strings.Repeat("ABC", 8))
	write(t, secret, "whsec_"+base64.StdEncoding.EncodeToString(key))
	file := strings.NewReplacer(
		"https://hooks.example.com/kubernetes", receiver.URL(), "/etc/kubeferry-hook/secret", secret,
	).Replace(asProcess(t, m))
	run := func() *exporter { return m.start(t, plane, file) }
	e := run()
	e.await(t, "/readyz", "ready although the CRD is missing", isReady)
	e.await(t, "/status", "the missing CRD is named", func(_ int, body string) bool {
		return strings.Contains(body, `"state": "missing"`)
	})
	if err := load.InstallWidgets(t.Context(), plane.Config()); err != nil {
		t.Fatal(err)
	}
	e.await(t, "/status", "the CRD is picked up", func(_ int, body string) bool {
		return strings.Count(body, `"state": "watching"`) == 3
	})

	received := accepted(receiver)
	awaitAll(t, received, m.live(t, plane))

	// Killed, and away while things happen: the state directory holds the position to go on from.
	e.process.Kill()
	missed := m.live(t, plane)
	e = run()
	awaitAll(t, received, missed)
	for _, line := range e.lines(t) {
		if line["level"] != "INFO" && line["msg"] != "no connection to the leader; trying again" { // which was the one that was killed
			t.Errorf("the log of the second start: %v", line)
		}
	}
	for _, request := range receiver.Requests() {
		if !verify(key, request.Header, request.Body) {
			t.Errorf("a request is not signed: %v", request.Header)
		}
	}
}

// TestImageHasEveryPackage: what .dockerignore lets through is enough to build the program.
func TestImageHasEveryPackage(t *testing.T) {
	ignore, err := os.ReadFile(filepath.Join("..", "..", ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{if .Main}}{{$.ImportPath}}{{end}}{{end}}", "./cmd/exporter")
	list.Dir = filepath.Join("..", "..")
	list.Env = append(os.Environ(), "GOWORK=off")
	packages, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	included := strings.Fields(string(ignore))
	for path := range strings.Lines(string(packages)) {
		top, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(path), "github.com/kubeferry/kubeferry/"), "/")
		if top != "" && !slices.Contains(included, "!"+top) {
			t.Errorf(".dockerignore keeps %s out of the image's build", path)
		}
	}
}
