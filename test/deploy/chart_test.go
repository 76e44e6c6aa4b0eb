package deploy_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kubeferry/kubeferry/test/internal/alerts"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

var chart = filepath.Join("..", "..", "deploy", "chart")

// helm runs the helm command, and returns what it prints. values are the text of a values file.
func helm(ctx context.Context, t *testing.T, values string, args ...string) (string, error) {
	t.Helper()
	path, err := programs.Helm().Path()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if values != "" {
		args = append(args, "--values", "-")
	}
	if slices.Contains([]string{"template", "lint", "install", "upgrade"}, args[0]) && !strings.Contains(values, "cluster:") && !slices.Contains(args, "--set") {
		args = append(args, "--set", "config.cluster=test") // which is required
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	cmd.Stdin = strings.NewReader(values)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("helm %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// renderChart renders the chart as `helm template` does.
func renderChart(t *testing.T, release, namespace, values string, args ...string) *manifests {
	t.Helper()
	text, err := helm(t.Context(), t, values, append([]string{"template", release, chart, "--namespace", namespace}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return readManifests(t, chart, []byte(text))
}

// all switches on what is off by default.
const all = `
podMonitor: {enabled: true, labels: {team: platform}}
prometheusRule: {enabled: true, overrides: {KubeferryChangeWaits: {expr: kubeferry_oldest_unsettled_seconds > 900, for: 5m}}}
dashboard: {enabled: true}
networkPolicy: {metricsFrom: [{namespaceSelector: {}}], egress: [{ports: [{protocol: TCP, port: 443}]}]}
env: [{name: NATS_URL, value: "tls://bus:4222"}, {name: TOKEN, valueFrom: {secretKeyRef: {name: bus, key: token}}}]
envFrom: [{secretRef: {name: more}}]
volumes: [{name: hook, secret: {secretName: hook}}]
volumeMounts: [{name: hook, mountPath: /etc/hook, readOnly: true}]
imagePullSecrets: [{name: registry}]
image: {repository: registry.example.com/kubeferry, tag: v1, pullPolicy: IfNotPresent}
serviceAccount: {create: false, name: existing}
podAnnotations: {note: "yes"}
podLabels: {team: platform}
commonLabels: {cost-center: "42"}
initContainers: [{name: before, image: busybox, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
extraContainers: [{name: beside, image: busybox, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
extraObjects:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: "{{ .Release.Name }}-{{ .Release.Namespace }}-more", namespace: "{{ .Release.Namespace }}"}}
  - |
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: "{{ .Release.Name }}-{{ .Release.Namespace }}-text", namespace: {{ .Release.Namespace }}}
nodeSelector: {kubernetes.io/os: linux}
tolerations: [{key: infra, operator: Exists}]
priorityClassName: system-cluster-critical
resources: {limits: {memory: 1Gi}, requests: {cpu: "1"}}
`

// alone are the values of a chart without standbys.
const alone = "replicas: 1\nleaderElection: false\npersistence: {enabled: true, size: 6Gi}\n"

func TestChartLint(t *testing.T) {
	for _, values := range []string{"", all, "persistence: {enabled: true}", alone} {
		if out, err := helm(t.Context(), t, values, "lint", "--strict", chart); err != nil {
			t.Errorf("%s\n%s%v", values, out, err)
		}
	}
}

// TestChartIsBase: the chart's default values make the Deployment and the configuration of deploy/base.
func TestChartIsBase(t *testing.T) {
	base, made := render(t, "base"), renderChart(t, "kubeferry", "kubeferry", "")
	if !reflect.DeepEqual(made.loaded, base.loaded) {
		t.Errorf("the chart's configuration is\n%s\ndeploy/base has\n%s", made.file, base.file)
	}
	spec := func(m *manifests) any {
		for _, object := range m.objects {
			if object.GetKind() == "Deployment" {
				return plain(object.Object["spec"])
			}
		}
		return nil
	}
	if got, want := spec(made), spec(base); want == nil || !reflect.DeepEqual(got, want) {
		t.Errorf("the chart's Deployment is\n%v\ndeploy/base has\n%v", got, want)
	}
	checkRights(t, made)
	checkReplicas(t, made)
}

// plain returns a copy without what differs by intent: the label of the release, and the digest of the configuration, which is in the name
// of the base's ConfigMap, and in an annotation of the chart's Pods.
func plain(value any) any {
	switch value := value.(type) {
	case map[string]any:
		copied := map[string]any{}
		for k, v := range value {
			if k != "app.kubernetes.io/instance" && k != "checksum/config" {
				copied[k] = plain(v)
			}
			if annotations, ok := copied[k].(map[string]any); ok && k == "annotations" && len(annotations) == 0 {
				delete(copied, k)
			}
		}
		return copied
	case []any:
		var copied []any
		for _, v := range value {
			copied = append(copied, plain(v))
		}
		return copied
	case string:
		if strings.HasPrefix(value, "kubeferry-config") {
			return "kubeferry-config"
		}
		return value
	case int64, int, float64:
		return fmt.Sprint(value)
	}
	return value
}

func writeConfig(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeferry.yaml")
	write(t, file, text)
	return file
}

// TestChartRights: the rights that the chart derives from sources are those that `kubeferry rbac` prints.
func TestChartRights(t *testing.T) {
	for name, sources := range map[string]string{
		"thirty kinds": `[{name: s, resources: [v1/pods, v1/services, v1/configmaps, v1/secrets, v1/nodes, v1/namespaces, v1/events, v1/endpoints,
			v1/serviceaccounts, v1/persistentvolumes, v1/persistentvolumeclaims, v1/resourcequotas, v1/limitranges, apps/v1/deployments,
			apps/v1/statefulsets, apps/v1/daemonsets, apps/v1/replicasets, batch/v1/jobs, batch/v1/cronjobs, autoscaling/v2/horizontalpodautoscalers,
			networking.k8s.io/v1/ingresses, networking.k8s.io/v1/networkpolicies, policy/v1/poddisruptionbudgets, storage.k8s.io/v1/storageclasses,
			rbac.authorization.k8s.io/v1/roles, rbac.authorization.k8s.io/v1/clusterroles, coordination.k8s.io/v1/leases,
			gateway.networking.k8s.io/v1/httproutes, cert-manager.io/v1/certificates, example.com/v1/widgets]}]`,
		"dotted":                     `[{name: s, resources: [deployments.v1.apps, pods.v1, widgets.v1beta1.example.com]}]`,
		"namespaces":                 `[{name: s, resources: [v1/pods, example.com/v1/widgets], namespaces: {include: [web, team-a, team-b], exclude: ["team-[^a-b]", "s?p", "x.y*"]}}]`,
		"globs":                      `[{name: s, resources: [v1/pods], namespaces: {include: [shop, "team-*"]}}]`,
		"the release's own":          `[{name: s, resources: [v1/pods, coordination.k8s.io/v1/leases], namespaces: {include: [audit]}}]`,
		"one object":                 `[{name: s, resources: [v1/configmaps], fieldSelector: "metadata.name=web,metadata.namespace!=x"}]`,
		"one object and all":         `[{name: s, resources: [v1/configmaps], fieldSelector: metadata.name==web}, {name: t, resources: [v1/configmaps], namespaces: {include: [shop]}}, {name: u, resources: [v1/configmaps], labelSelector: a=b}]`,
		"one object and a namespace": `[{name: s, resources: [v1/configmaps], fieldSelector: metadata.name=web, namespaces: {include: [shop]}}, {name: t, resources: [v1/configmaps], namespaces: {include: [shop, other]}, labelSelector: a=b}]`,
		"many namespaces":            `[{name: s, resources: [v1/pods], namespaces: {include: [a, b, c, d, e, f, g, h, i, j, k, l, m, nn, o, p, q, r, s, t, u, v]}}]`,
	} {
		pipelines := "pipelines: [{name: p, sink: bus, sources: [s]}"
		for _, source := range []string{"t", "u"} { // a pipeline of its own: each takes a resource from one source
			if strings.Contains(sources, "name: "+source) {
				pipelines += fmt.Sprintf(", {name: %s, sink: bus, sources: [%[1]s]}", source)
			}
		}
		for option, more := range map[string]string{
			"":                      pipelines + "]",
			", and Lease elsewhere": pipelines + "]\n  leaderElection: {leaseName: mine, leaseNamespace: leases}",
			", enriched":            pipelines + ", {name: q, sink: bus, enrich: involvedObject}]",
			", enriched by few":     pipelines + ", {name: q, sink: bus, enrich: involvedObject}]\n  enrichment: {resources: [v1/pods, example.com/v1/gadgets]}",
		} {
			if strings.HasPrefix(option, ", enriched") && name != "thirty kinds" {
				continue // it needs Events
			}
			t.Run(name+option, func(t *testing.T) {
				t.Parallel()
				m := renderChart(t, "audit", "audit", fmt.Sprintf("config:\n  sources: %s\n  %s\n", strings.ReplaceAll(sources, "\t", ""), more))
				checkRights(t, m)
			})
		}
	}
}

// TestChartSizes: disk and memory follow from the configuration, and so does the time to stop.
func TestChartSizes(t *testing.T) {
	for _, test := range []struct {
		name, values string
		disk, memory string
		grace        int64
	}{
		{"defaults", "config: {pipelines: [{name: p, sink: bus}], deadLetters: {maxBytes: null}}", "24064Mi", "512Mi", 40},
		{
			"set", "config: {pipelines: [{name: p, sink: bus, backlog: {maxBytes: 1Gi, maxDiskBytes: 2000000000}}, {name: q, sink: bus, diff: jsonPatch, backlog: {maxDiskBytes: 1.5Gi}}], shutdown: {grace: 1m30s}}",
			"8935Mi", "2688Mi", 110,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := renderChart(t, "kubeferry", "kubeferry", test.values)
			resources, volumes := m.container().Resources, m.workload.Spec.Template.Spec.Volumes
			disk := slices.IndexFunc(volumes, func(v corev1.Volume) bool { return v.EmptyDir != nil })
			if got := volumes[disk].EmptyDir.SizeLimit.String(); got != test.disk || resources.Requests.StorageEphemeral().String() != test.disk {
				t.Errorf("sizeLimit %s, requests %s, want %s", got, resources.Requests.StorageEphemeral(), test.disk)
			}
			if got := resources.Limits.Memory().String(); got != test.memory {
				t.Errorf("memory %s, want %s", got, test.memory)
			}
			if got := *m.workload.Spec.Template.Spec.TerminationGracePeriodSeconds; got != test.grace {
				t.Errorf("terminationGracePeriodSeconds %d, want %d", got, test.grace)
			}
		})
	}
	// No request is more than its limit, whichever of them is set.
	for values, want := range map[string][2]string{
		"resources: {requests: {memory: 1Gi}}":             {"1Gi 1Gi", ""},
		"resources: {requests: {memory: 100Mi}}":           {"100Mi 512Mi", ""},
		"resources: {limits: {ephemeral-storage: 2Gi}}":    {"", "2Gi 2Gi"},
		"resources: {limits: {ephemeral-storage: 1000Gi}}": {"", "4Gi 1000Gi"},
	} {
		r := renderChart(t, "kubeferry", "kubeferry", values).container().Resources
		for n, got := range []string{
			fmt.Sprint(r.Requests.Memory(), " ", r.Limits.Memory()), fmt.Sprint(r.Requests.StorageEphemeral(), " ", r.Limits.StorageEphemeral()),
		} {
			if want[n] != "" && got != want[n] {
				t.Errorf("%s: request and limit are %s, want %s", values, got, want[n])
			}
		}
	}
	m := renderChart(t, "kubeferry", "kubeferry", "persistence: {enabled: true}\nfullnameOverride: "+strings.Repeat("n", 52))
	checkReplicas(t, m)
	// Kubernetes does not change the volumes of a StatefulSet, so their size does not follow from the configuration.
	less := "persistence: {enabled: true}\nconfig: {pipelines: [{name: p, sink: bus, backlog: {maxDiskBytes: 1Gi}}]}"
	if text, err := helm(t.Context(), t, less, "template", "kubeferry", chart); err != nil || !strings.Contains(text, "storage: 24Gi") {
		t.Errorf("%v: the volumes are not of persistence.size\n%s", err, text)
	}
	for class, want := range map[string]bool{`""`: true, "null": false} {
		values := "persistence: {enabled: true, storageClassName: " + class + "}"
		if text, err := helm(t.Context(), t, values, "template", "kubeferry", chart); err != nil || strings.Contains(text, "storageClassName: "+class) != want {
			t.Errorf("%v: storageClassName %s\n%s", err, class, text)
		}
	}
}

// TestChartValues: all that can be switched on arrives, and a number stays one.
func TestChartValues(t *testing.T) {
	m := renderChart(t, "audit", "ops", all+"config: {sinks: [{name: bus, nats: {urls: [\"${NATS_URL}\"], subject: k8s, batch: {maxRecords: 1000000}}}]}\n")
	pod, container := m.workload.Spec.Template.Spec, m.container()
	if !strings.Contains(m.file, "maxRecords: 1000000\n") {
		t.Errorf("the configuration is\n%s", m.file)
	}
	if pod.ServiceAccountName != "existing" || container.Image != "registry.example.com/kubeferry:v1" || len(pod.Volumes) != 3 || len(container.VolumeMounts) != 3 ||
		len(container.EnvFrom) != 1 || container.Env[4].ValueFrom.SecretKeyRef.Name != "bus" || len(pod.InitContainers) != 1 || len(pod.Containers) != 2 || pod.Tolerations[0].Key != "infra" {
		t.Errorf("the Pod is %+v", pod)
	}
	if container.Resources.Limits.Memory().String() != "1Gi" || container.Resources.Requests.Cpu().String() != "1" || container.Resources.Requests.StorageEphemeral().String() != "4Gi" {
		t.Errorf("the resources are %+v", container.Resources)
	}
	if len(m.network.Spec.Egress) != 2 || len(m.network.Spec.Ingress[0].From) != 1 {
		t.Errorf("the NetworkPolicy is %+v", m.network.Spec)
	}
	checkRules(t, m.objects, "ops/audit-kubeferry")
	kinds := names(m.objects)
	for _, want := range []string{
		"PodMonitor ops/audit-kubeferry", "PrometheusRule ops/audit-kubeferry", "ConfigMap ops/audit-kubeferry-dashboard",
		"ConfigMap ops/audit-ops-more", "ConfigMap ops/audit-ops-text",
	} {
		if !slices.Contains(kinds, want) {
			t.Errorf("there is no %s in %q", want, kinds)
		}
	}
	for i, object := range m.objects {
		if strings.HasPrefix(object.GetName(), "audit-kubeferry") && object.GetLabels()["cost-center"] != "42" {
			t.Errorf("%s has the labels %v", kinds[i], object.GetLabels())
		}
	}
	if m.workload.Spec.Template.Labels["cost-center"] != "42" {
		t.Errorf("the Pods have the labels %v", m.workload.Spec.Template.Labels)
	}
	if slices.ContainsFunc(kinds, func(k string) bool { return strings.HasPrefix(k, "ServiceAccount ") }) {
		t.Error("a ServiceAccount is made although one is named")
	}
	checkRights(t, m)
}

// TestChartOfOneReplica: an alert that would fire for ever is left out where it is about this release only.
func TestChartOfOneReplica(t *testing.T) {
	for values, want := range map[string]bool{
		"replicas: 1\npodMonitor: {enabled: true}":  false,
		"replicas: 2\npodMonitor: {enabled: true}":  true,
		"replicas: 1\npodMonitor: {enabled: false}": true, // the rules are about every release
	} {
		rules := rulesOf(t, renderChart(t, "kubeferry", "kubeferry", values+"\nprometheusRule: {enabled: true}").objects)
		if got := slices.ContainsFunc(rules, func(r alerts.Rule) bool { return r.Alert == "KubeferryNoStandby" }); got != want || len(rules) < 11 {
			t.Errorf("%s: KubeferryNoStandby %v, want %v; %d rules", values, got, want, len(rules))
		}
	}
}

// TestChartSecurityContexts: a cluster may choose the users, as OpenShift's restricted-v2 does, or all of it.
func TestChartSecurityContexts(t *testing.T) {
	const chosen = "podSecurityContext: {runAsUser: null, runAsGroup: null}\n"
	for values, want := range map[string]string{
		"":                                      `{"runAsUser":65532,"runAsGroup":65532,"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}`,
		"persistence: {enabled: true}":          `{"runAsUser":65532,"runAsGroup":65532,"runAsNonRoot":true,"fsGroup":65532,"seccompProfile":{"type":"RuntimeDefault"}}`,
		chosen:                                  `{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}`,
		chosen + "persistence: {enabled: true}": `{"runAsNonRoot":true,"seccompProfile":{"type":"RuntimeDefault"}}`,
		"podSecurityContext: {fsGroup: 7}\npersistence: {enabled: true}": `{"runAsUser":65532,"runAsGroup":65532,"runAsNonRoot":true,"fsGroup":7,"seccompProfile":{"type":"RuntimeDefault"}}`,
		"podSecurityContext: null\ncontainerSecurityContext: null":       "null",
	} {
		m := renderChart(t, "kubeferry", "kubeferry", values)
		got, err := json.Marshal(m.workload.Spec.Template.Spec.SecurityContext)
		if err != nil || string(got) != want {
			t.Errorf("%q: got %s, %v, want %s", values, got, err, want)
		}
		if container := m.container().SecurityContext; (container == nil) != (want == "null") {
			t.Errorf("%q: the container has %v", values, container)
		}
	}
}

// TestChartEnvironment: variables of the user's are beside those that the program needs.
func TestChartEnvironment(t *testing.T) {
	m := renderChart(t, "kubeferry", "kubeferry", "env: [{name: MORE, value: \"1\"}]")
	var got []string
	for _, variable := range m.container().Env {
		got = append(got, variable.Name)
	}
	if want := []string{"GOMEMLIMIT", "POD_IP", "POD_NAMESPACE", "MORE"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestChartConfigMap: an upgrade leaves no ConfigMap behind, since its name stays, and rolls the Pods out. One that exists may take its place.
func TestChartConfigMap(t *testing.T) {
	before := renderChart(t, "kubeferry", "kubeferry", "")
	after := renderChart(t, "kubeferry", "kubeferry", "config: {cluster: test, shutdown: {grace: 10s}}")
	if a, b := configOf(&before.workload.Spec.Template.Spec), configOf(&after.workload.Spec.Template.Spec); a != b {
		t.Errorf("the ConfigMaps are %s and %s", a, b)
	}
	if a, b := before.workload.Spec.Template.Annotations, after.workload.Spec.Template.Annotations; reflect.DeepEqual(a, b) {
		t.Errorf("a changed configuration changes no Pods: %v", a)
	}
	if strings.Contains(string(before.text), "resource-policy") || strings.Contains(string(before.text), "immutable") {
		t.Errorf("the ConfigMap outlives its release:\n%s", before.text)
	}
	text, err := helm(t.Context(), t, "existingConfigMap: mine\nconfig: {cluster: null}", "template", "kubeferry", chart)
	if err != nil || strings.Contains(text, "kind: ConfigMap") || !strings.Contains(text, "configMap: {name: mine}") {
		t.Errorf("%v: of an existing ConfigMap\n%s", err, text)
	}
}

// TestChartObjects: what is switched off is not there, and what drains wait for follows from where the state is.
func TestChartObjects(t *testing.T) {
	if kinds := names(renderChart(t, "kubeferry", "kubeferry", "lease: {create: false}").objects); slices.Contains(kinds, "Lease kubeferry/kubeferry") {
		t.Errorf("there is a Lease in %q", kinds)
	}
	for values, want := range map[string]string{
		"": "IfHealthyBudget", "persistence: {enabled: true}": "AlwaysAllow",
		"podDisruptionBudget: {unhealthyPodEvictionPolicy: AlwaysAllow}": "AlwaysAllow",
	} {
		if got := renderChart(t, "kubeferry", "kubeferry", values).budget.Spec.UnhealthyPodEvictionPolicy; got == nil || string(*got) != want {
			t.Errorf("%q: unhealthyPodEvictionPolicy is %v, want %s", values, got, want)
		}
	}
}

// TestChartAlerts: parts of a rule are replaced, and rules left out.
func TestChartAlerts(t *testing.T) {
	m := renderChart(t, "kubeferry", "ops", "serviceMonitor: {enabled: true}\nprometheusRule: {enabled: true, disabled: [KubeferryLogFull], "+
		"overrides: {KubeferryChangeWaits: {expr: kubeferry_oldest_unsettled_seconds > 900, for: 5m, labels: {severity: page}}}}")
	if !slices.Contains(names(m.objects), "ServiceMonitor ops/kubeferry") {
		t.Errorf("there is no ServiceMonitor in %q", names(m.objects))
	}
	for _, rule := range rulesOf(t, m.objects) {
		if !strings.Contains(rule.Expr, `{job="kubeferry",namespace="ops"`) {
			t.Errorf("%s is about other releases too: %s", rule.Alert, rule.Expr)
		}
		switch rule.Alert {
		case "KubeferryLogFull":
			t.Error("KubeferryLogFull is there")
		case "KubeferryChangeWaits":
			if !strings.HasSuffix(rule.Expr, "> 900") || rule.For.String() != "5m" || rule.Labels["severity"] != "page" || rule.Annotations["runbook_url"] == "" {
				t.Errorf("got %+v", rule)
			}
		}
	}
}

// names are the kinds, namespaces and names of objects.
func names(objects []*unstructured.Unstructured) (names []string) {
	for _, object := range objects {
		names = append(names, fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName()))
	}
	return names
}

// TestChartReleases: what two releases make is not the same, whether they differ in their names or in their namespaces.
func TestChartReleases(t *testing.T) {
	seen := map[string]string{}
	const values = "config: {sources: [{name: s, resources: [v1/pods], namespaces: {include: [shop]}}, {name: nodes, resources: [v1/nodes]}]}\n" + all
	for _, release := range []string{"a/kubeferry", "a/audit", "b/kubeferry", "a-kubeferry/b", "a/kubeferry-b"} {
		namespace, name, _ := strings.Cut(release, "/")
		m := renderChart(t, name, namespace, strings.Replace(values, "create: false, name: existing", "create: true", 1))
		for _, name := range names(m.objects) {
			if other, ok := seen[name]; ok {
				t.Errorf("%s is in %s and in %s", name, other, release)
			}
			seen[name] = release
		}
		selected := fmt.Sprint(m.workload.Namespace, m.workload.Spec.Selector.MatchLabels)
		if other, ok := seen[selected]; ok {
			t.Errorf("%s and %s select the same Pods", other, release)
		}
		seen[selected] = release
	}
}

// documentedValues are those in docs/install.md.
func documentedValues(t *testing.T) string {
	t.Helper()
	_, section, found := strings.Cut(read(t, filepath.Join("..", "..", "docs", "install.md")), "\n## With your configuration\n")
	_, values, shown := strings.Cut(section, "```yaml\n")
	values, _, closed := strings.Cut(values, "```")
	if !found || !shown || !closed {
		t.Fatal("docs/install.md shows no values")
	}
	return values
}

func TestChartDocumentedValues(t *testing.T) {
	const wildcards = "config: {sources: [{name: s, resources: [\"apps/*\", \"*.example.com\", \"batch/v1/*\", v1/pods], exclude: [replicasets.apps], namespaces: {include: [a], selector: team}}, " +
		"{name: t, resources: [\"v1/*\"], exclude: [pods], namespaces: {include: [a]}}]}"
	for _, values := range []string{documentedValues(t), "replicas: 1\nleaderElection: false\nconfig: {stateDir: null}", wildcards} {
		checkRights(t, renderChart(t, "audit", "audit", values))
	}
	// A variable is no matter where no right depends on it.
	const variables = "config: {sources: [{name: s, resources: [v1/pods], namespaces: {exclude: [\"${TEAM}\"]}, fieldSelector: \"spec.nodeName=${NODE}\"}]}"
	if text, err := helm(t.Context(), t, variables, "template", "kubeferry", chart); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestChartPrints: the values with which the pages install the chart first make a configuration that needs no other server.
func TestChartPrints(t *testing.T) {
	var shown []string
	for _, page := range []string{"README.md", "docs/install.md"} {
		for _, found := range regexp.MustCompile(`(?m)^    helm upgrade --install try .*--set-json '(.*)'$`).FindAllStringSubmatch(read(t, filepath.Join("..", "..", page)), -1) {
			shown = append(shown, found[1])
		}
	}
	if len(shown) != 4 {
		t.Errorf("the pages install the chart with %q", shown)
	}
	for _, values := range shown {
		m := renderChart(t, "try", "try", "", "--set", "config.cluster=try", "--set-json", values)
		if len(m.loaded.Sinks) != 1 || m.loaded.Sinks[0].Kind != "stdout" {
			t.Errorf("the sinks are %+v", m.loaded.Sinks)
		}
		checkRights(t, m)
	}
}

// TestChartRefuses: a mistake in the values is reported before anything is applied.
func TestChartRefuses(t *testing.T) {
	for values, want := range map[string]string{
		"config: {cluster: null}": "config.cluster: name the cluster",
		"config: {sinks: [{name: bus, stdout: {}}, {name: f, file: {path: /var/lib/kubeferry/f}}]}": "config.sinks[1].file.path: it lies in stateDir",
		"config: {server: {listen: \"127.0.0.1:8080\"}}":                                            `config.server.listen: only the Pod itself reaches 127.0.0.1:8080, so probes and standbys would fail: write ":8080"`,
		"podMonitor: {enabled: true}\nserviceMonitor: {enabled: true}":                              "would scrape each Pod twice",
		"prometheusRule: {enabled: true, disabled: [KubeferryNone]}":                                "there is no alert KubeferryNone; there are: KubeferryChangeWaits",
		"replica: 3":                         "replica",
		"replicas: two":                      "replicas",
		"config: {sources: []}":              "sources",
		"config: {sinks: null}":              "sinks",
		"leaderElection: false":              "several replicas",
		"config: {stateDir: null}":           "leaderElection needs config.stateDir",
		"replicas: 1\nleaderElection: false": "each rollout would lose the state",
		alone + "config: {pipelines: [{name: p, sink: bus, backlog: {maxDiskBytes: 3Gi}}]}":              "persistence.size: 6Gi is less than the",
		"config: {sources: [{name: s, resources: [\"apps/v1/${KIND}\"]}]}":                               "config.sources[0]: write names without",
		"config: {sources: [{name: s, resources: [deploy]}]}":                                            "config.sources[0].resources[0]: write deploy in full",
		"config: {sources: [{name: s, resources: [v1/pods], namespaces: {include: [\"${TEAM}\"]}}]}":     "config.sources[0]: write names without",
		"config: {sources: [{name: s, resources: [v1/pods], fieldSelector: \"metadata.name=${NAME}\"}]}": "config.sources[0]: write names without",
		"persistence: {enabled: true, size: 1Gi}":                                                        "persistence.size: 1Gi is less than the",
		"persistence: {enabled: true, size: null}":                                                       "missing property 'size'",
		"persistence: {enabled: true}\nfullnameOverride: " + strings.Repeat("n", 53):                     "at most 52 characters: set fullnameOverride",
		"serviceAccount: {create: false}":                                                                "serviceAccount.name",
	} {
		if out, err := helm(t.Context(), t, values, "template", "kubeferry", chart); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v %.200s, want an error with %q", values, err, out, want)
		}
	}
}
