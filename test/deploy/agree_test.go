package deploy_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// checkRights fails unless the rights are those that `kubeferry rbac` prints for the configuration: nothing less and nothing more.
func checkRights(t *testing.T, m *manifests) {
	t.Helper()
	pod := m.workload.Spec.Template.Spec
	printed, err := exec.CommandContext(t.Context(), binary(t), "rbac", "--config", writeConfig(t, m.file), "--name", m.role.Name,
		"--namespace", m.workload.Namespace, "--service-account", pod.ServiceAccountName).Output()
	if err != nil {
		t.Fatalf("kubeferry rbac: %v", err)
	}
	needed := decode(t, printed)
	if got, want := rights(t, m.objects), rights(t, needed); len(want) == 0 || !slices.Equal(got, want) {
		t.Errorf("the manifests grant\n%s\nexporter rbac prints\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// decode reads the objects of a YAML stream.
func decode(t *testing.T, text []byte) (objects []*unstructured.Unstructured) {
	t.Helper()
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 1024); ; {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// rights are those of Roles, ClusterRoles and bindings, one for each verb on each resource, in an order of their own.
func rights(t *testing.T, objects []*unstructured.Unstructured) (found []string) {
	t.Helper()
	for _, object := range objects {
		in := fmt.Sprintf("%s %s/%s", object.GetKind(), object.GetNamespace(), object.GetName())
		switch object.GetKind() {
		case "Role", "ClusterRole":
			var role rbacv1.ClusterRole
			convert(t, object, &role)
			for _, rule := range role.Rules {
				names := rule.ResourceNames
				if len(names) == 0 {
					names = []string{"*"}
				}
				for _, group := range rule.APIGroups {
					for _, plural := range rule.Resources {
						for _, name := range names {
							for _, verb := range rule.Verbs {
								found = append(found, fmt.Sprintf("%s: %s %s/%s %s", in, verb, group, plural, name))
							}
						}
					}
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			var binding rbacv1.ClusterRoleBinding
			convert(t, object, &binding)
			for _, subject := range binding.Subjects {
				found = append(found, fmt.Sprintf("%s: %v to %v", in, binding.RoleRef, subject))
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// checkReplicas compares what the Pods need to be replicas with the configuration.
func checkReplicas(t *testing.T, m *manifests) {
	t.Helper()
	spec := m.workload.Spec
	pod, container := spec.Template.Spec, m.container()
	mounted := ""
	for _, mount := range container.VolumeMounts {
		if mount.MountPath == m.loaded.StateDir && !mount.ReadOnly {
			mounted = mount.Name
		}
	}
	// While a standby copies the state there are two of it.
	needed := int64(1 << 30)
	for _, p := range m.loaded.Pipelines {
		needed += 2 * int64(p.Backlog.MaxDiskBytes)
	}
	needed += 2 * int64(m.loaded.DeadLetters.MaxBytes)
	if *spec.Replicas != 2 {
		t.Errorf("got %d replicas, want two", *spec.Replicas)
	}
	one, none := intstr.FromInt32(1), intstr.FromInt32(0)
	if m.claims == nil {
		if rolling := spec.Strategy.RollingUpdate; rolling == nil || *rolling.MaxSurge != one || *rolling.MaxUnavailable != none {
			t.Errorf("got %+v: want maxSurge 1, maxUnavailable 0", spec.Strategy)
		}
		volume := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool {
			return v.Name == mounted && v.EmptyDir != nil && v.EmptyDir.SizeLimit != nil
		})
		requested := container.Resources.Requests[corev1.ResourceEphemeralStorage]
		switch {
		case volume < 0:
			t.Errorf("no emptyDir with a sizeLimit is mounted at %s", m.loaded.StateDir)
		case pod.Volumes[volume].EmptyDir.SizeLimit.Value() < needed || requested.Cmp(*pod.Volumes[volume].EmptyDir.SizeLimit) < 0:
			t.Errorf("sizeLimit %v, requests %v: want at least %d", pod.Volumes[volume].EmptyDir.SizeLimit, &requested, needed)
		}
	} else {
		if m.management != appsv1.ParallelPodManagement { // else the one with the older copy may start, and lead, alone
			t.Errorf("podManagementPolicy is %q", m.management)
		}
		claim := slices.IndexFunc(m.claims, func(c corev1.PersistentVolumeClaim) bool { return c.Name == mounted })
		switch {
		case claim < 0:
			t.Errorf("no claim is mounted at %s", m.loaded.StateDir)
		case m.claims[claim].Spec.Resources.Requests.Storage().Value() < needed:
			t.Errorf("the claim requests %v, want at least %d", m.claims[claim].Spec.Resources.Requests.Storage(), needed)
		}
		if pod.SecurityContext.FSGroup == nil || *pod.SecurityContext.FSGroup != *pod.SecurityContext.RunAsUser {
			t.Errorf("fsGroup is %v: the program cannot write to its volume", pod.SecurityContext.FSGroup)
		}
	}
	port := slices.IndexFunc(container.Ports, func(p corev1.ContainerPort) bool { return p.Name == "replication" })
	if port < 0 || fmt.Sprint(":", container.Ports[port].ContainerPort) != m.loaded.Replication.Listen {
		t.Errorf("the container's ports are %v, but the program listens on %s for standbys", container.Ports, m.loaded.Replication.Listen)
	}
	if want := "[10.0.0.1]" + m.loaded.Replication.Listen; m.loaded.Replication.Advertise != want {
		t.Errorf("it advertises %s, want %s", m.loaded.Replication.Advertise, want)
	}
	if m.lease.Name != m.loaded.LeaderElection.LeaseName || m.lease.Namespace != m.workload.Namespace || m.loaded.LeaderElection.LeaseNamespace != "" {
		t.Errorf("the Lease is %s/%s, the configuration has %+v", m.lease.Namespace, m.lease.Name, m.loaded.LeaderElection)
	}
	if delete(m.lease.Annotations, "helm.sh/resource-policy"); len(m.lease.Annotations) > 0 || m.lease.Spec.HolderIdentity != nil {
		t.Error("the manifest of the Lease has what the leader writes")
	}
	labels := spec.Selector.MatchLabels
	spread := pod.TopologySpreadConstraints
	if len(spread) != 1 || spread[0].TopologyKey != corev1.LabelHostname || fmt.Sprint(spread[0].LabelSelector.MatchLabels) != fmt.Sprint(labels) {
		t.Fatalf("spread by %+v", spread)
	}
	// On two nodes, also within a rollout of a Deployment; a cordoned node does not count.
	if s := spread[0]; s.MaxSkew != 1 || s.WhenUnsatisfiable != corev1.DoNotSchedule || s.NodeTaintsPolicy == nil ||
		*s.NodeTaintsPolicy != corev1.NodeInclusionPolicyHonor || (m.claims == nil) != slices.Equal(s.MatchLabelKeys, []string{"pod-template-hash"}) {
		t.Errorf("spread by %+v", s)
	}
	if m.budget.Spec.MaxUnavailable == nil || *m.budget.Spec.MaxUnavailable != one || fmt.Sprint(m.budget.Spec.Selector.MatchLabels) != fmt.Sprint(labels) {
		t.Errorf("the PodDisruptionBudget is %+v", m.budget.Spec)
	}
	// A port that is open to all has no `from`, and the other one the Pods themselves.
	open := map[string]string{}
	for _, rule := range m.network.Spec.Ingress {
		for _, port := range rule.Ports {
			open[port.Port.String()] = "all"
			if len(rule.From) == 1 && rule.From[0].PodSelector != nil && rule.From[0].NamespaceSelector == nil {
				open[port.Port.String()] = fmt.Sprint(rule.From[0].PodSelector.MatchLabels)
			}
		}
	}
	if want := fmt.Sprint(map[string]string{"http": "all", "replication": fmt.Sprint(labels)}); fmt.Sprint(open) != want {
		t.Errorf("the NetworkPolicy opens %v, want %s", open, want)
	}
}
