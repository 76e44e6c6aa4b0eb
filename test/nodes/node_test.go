package nodes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// node does for the Pods that the scheduler binds to it what a kubelet does: it runs the program with the arguments, the environment, the
// configuration and a token of the Pod, on a loopback address of the Pod's own, probes it, starts it again when it has ended, and sends
// SIGTERM when the Pod is deleted.
type node struct {
	name   string
	config *rest.Config // with every right
	client kubernetes.Interface
	dir    string
	exe    string
	// edit changes what a configuration names that is not there: directories, sinks.
	edit func(config map[string]any, podDir string)
	env  []string // beside that of the Pod

	stop context.CancelFunc
	wg   sync.WaitGroup

	mu   sync.Mutex
	pods map[types.UID]bool
	errs []error
}

// addresses counts the Pods of all nodes: each has 127.0.x.y of its own.
var addresses struct {
	sync.Mutex
	last int
}

func address() string {
	addresses.Lock()
	defer addresses.Unlock()
	addresses.last++
	return fmt.Sprintf("127.0.%d.%d", 1+addresses.last/250, 1+addresses.last%250)
}

// startNode registers a node, and runs its Pods until the test ends or it is lost.
func startNode(t *testing.T, config *rest.Config, name string, edit func(config map[string]any, podDir string), env ...string) *node {
	t.Helper()
	exe, err := programs.Exporter().Path()
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	n := &node{name: name, config: config, client: client, dir: t.TempDir(), exe: exe, edit: edit, env: env, pods: map[types.UID]bool{}}
	size := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("4Gi"),
		corev1.ResourceEphemeralStorage: resource.MustParse("20Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	now := metav1.Now()
	_, err = client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Capacity: size, Allocatable: size, Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	n.wg.Go(func() { n.every(ctx, time.Second, n.renew) })
	n.wg.Go(func() { n.every(ctx, 100*time.Millisecond, n.sync) })
	t.Cleanup(func() {
		n.Lose()
		for _, err := range n.errs {
			t.Errorf("node %s: %v", name, err)
		}
	})
	return n
}

// Lose ends all that runs on the node with SIGKILL, and the node says nothing any more.
func (n *node) Lose() {
	n.stop()
	n.wg.Wait()
}

func (n *node) every(ctx context.Context, d time.Duration, do func(context.Context) error) {
	for ctx.Err() == nil {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			n.fail(err)
		}
		pause(ctx, d)
	}
}

func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.errs = append(n.errs, err)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// renew renews the Lease of the node, by which the controllers see that it is there.
func (n *node) renew(ctx context.Context) error {
	leases := n.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	spec := coordinationv1.LeaseSpec{HolderIdentity: &n.name, LeaseDurationSeconds: new(int32(40)), RenewTime: new(metav1.NowMicro())}
	lease, err := leases.Get(ctx, n.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: spec}, metav1.CreateOptions{})
		return err
	}
	if err == nil {
		lease.Spec = spec
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	}
	return err
}

// sync starts what is bound to the node.
func (n *node) sync(ctx context.Context) error {
	pods, err := n.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
	if err != nil {
		return err
	}
	for _, pod := range pods.Items {
		n.mu.Lock()
		known := n.pods[pod.UID]
		n.pods[pod.UID] = true
		n.mu.Unlock()
		if !known {
			n.wg.Go(func() {
				if err := n.run(ctx, &pod); err != nil && ctx.Err() == nil {
					n.fail(fmt.Errorf("Pod %s: %w", pod.Name, err))
				}
			})
		}
	}
	return nil
}

// run runs a Pod until it is deleted or the node is lost.
func (n *node) run(ctx context.Context, pod *corev1.Pod) error {
	ip := address()
	options, err := n.prepare(ctx, pod, ip)
	if err != nil {
		return err
	}
	for restarts := int32(0); ; restarts++ {
		p, err := process.Start(options)
		if err != nil {
			return err
		}
		gone, err := n.attend(ctx, p, pod, ip, restarts)
		if gone || err != nil {
			p.Kill()
			return err
		}
		pause(ctx, time.Second)
	}
}

// prepare makes what the Pod mounts, and returns how the program is started.
func (n *node) prepare(ctx context.Context, pod *corev1.Pod, ip string) (process.Options, error) {
	dir := filepath.Join(n.dir, pod.Name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return process.Options{}, err
	}
	config, kubeconfig := filepath.Join(dir, "kubeferry.yaml"), filepath.Join(dir, "kubeconfig")
	for _, volume := range pod.Spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		mounted, err := n.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return process.Options{}, err
		}
		var content map[string]any
		if err := yaml.Unmarshal([]byte(mounted.Data["kubeferry.yaml"]), &content); err != nil {
			return process.Options{}, err
		}
		n.edit(content, dir)
		text, err := json.Marshal(content)
		if err != nil {
			return process.Options{}, err
		}
		if err := os.WriteFile(config, text, 0o600); err != nil {
			return process.Options{}, err
		}
	}
	token, err := n.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, pod.Spec.ServiceAccountName, &authv1.TokenRequest{
		Spec: authv1.TokenRequestSpec{BoundObjectRef: &authv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		return process.Options{}, err
	}
	account := &rest.Config{
		Host: n.config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: n.config.CAData}, BearerToken: token.Status.Token,
	}
	if err := controlplane.WriteKubeconfig(kubeconfig, account); err != nil {
		return process.Options{}, err
	}
	container := pod.Spec.Containers[0]
	var args, env []string
	for _, arg := range container.Args {
		args = append(args, strings.ReplaceAll(arg, "/etc/kubeferry/kubeferry.yaml", config))
	}
	for _, variable := range container.Env {
		value := variable.Value
		switch from := variable.ValueFrom; {
		case from == nil:
		case from.FieldRef != nil:
			value = map[string]string{"status.podIP": ip, "metadata.namespace": pod.Namespace}[from.FieldRef.FieldPath]
		case from.ResourceFieldRef != nil:
			value = strconv.FormatInt(container.Resources.Limits.Memory().Value(), 10)
		}
		env = append(env, variable.Name+"="+value)
	}
	return process.Options{
		Path: n.exe, Args: append(args, "--kubeconfig", kubeconfig), Env: append(env, n.env...), Log: filepath.Join(dir, "log"),
	}, nil
}

// attend probes a program, and writes the Pod's status, until it ends by itself, the Pod is deleted, or the node is lost; gone is set for
// the last two.
func (n *node) attend(ctx context.Context, p *process.Process, pod *corev1.Pod, ip string, restarts int32) (gone bool, err error) {
	pods, period := n.client.CoreV1().Pods(pod.Namespace), time.Duration(pod.Spec.Containers[0].ReadinessProbe.PeriodSeconds)*time.Second
	var probed time.Time
	ready, written := false, false
	for {
		select {
		case <-ctx.Done():
			return true, nil
		case <-p.Done():
			return false, n.write(ctx, pod, ip, restarts, false)
		default:
		}
		switch now, err := pods.Get(ctx, pod.Name, metav1.GetOptions{}); {
		case err != nil && !apierrors.IsNotFound(err):
			return false, err
		case err != nil || now.UID != pod.UID:
			return true, nil
		case now.DeletionTimestamp != nil:
			p.Stop(time.Duration(*now.DeletionGracePeriodSeconds) * time.Second)
			return true, pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &pod.UID},
			})
		}
		if time.Since(probed) >= period {
			probed = time.Now()
			if is := answers(ctx, ip, "/readyz"); is != ready || !written {
				ready, written = is, true
				if err := n.write(ctx, pod, ip, restarts, ready); err != nil {
					return false, err
				}
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func answers(ctx context.Context, ip, path string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ip+":8080"+path, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// write writes the status of a Pod that runs.
func (n *node) write(ctx context.Context, pod *corev1.Pod, ip string, restarts int32, ready bool) error {
	pods := n.client.CoreV1().Pods(pod.Namespace)
	is, now := corev1.ConditionFalse, metav1.Now()
	if ready {
		is = corev1.ConditionTrue
	}
	for {
		found, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		s := &found.Status
		s.Phase, s.PodIP, s.PodIPs, s.StartTime = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}, &pod.CreationTimestamp
		conditions := []corev1.PodCondition{
			{Type: corev1.PodReady, Status: is, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: is, LastTransitionTime: now},
		}
		for _, c := range s.Conditions {
			if c.Type != corev1.PodReady && c.Type != corev1.ContainersReady {
				conditions = append(conditions, c)
			}
		}
		s.Conditions = conditions
		s.ContainerStatuses = []corev1.ContainerStatus{{
			Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, Ready: ready, RestartCount: restarts,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}}
		if _, err = pods.UpdateStatus(ctx, found, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			return err
		}
	}
}
