// Package nodes_test runs deploy/base and the chart on nodes: a real API server, controller manager, scheduler, kubectl and Helm, and
// processes in place of containers. It shows what becomes of the changes when a version is rolled out, nodes are drained, and one is lost.
// It is part of `make test-all` only: it needs programs that no other test does.
package nodes_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare, controlplane.PrepareControllers,
		programs.Exporter().Build, programs.Kubectl().Build, programs.Helm().Build)
	os.Exit(m.Run())
}

const (
	namespace     = "kubeferry"
	leaseDuration = 10 * time.Second // of deploy/base, by default
)

// cluster is a control plane with nodes.
type cluster struct {
	*testing.T
	plane  *controlplane.ControlPlane
	client kubernetes.Interface
	nodes  map[string]*node
	hook   *webhooktest.Receiver
	bus    *natstest.Server
	home   string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	// A Pod is evicted from a node that is lost a few seconds later, not 5 minutes.
	plane := controlplane.ForTest(t, controlplane.Options{APIServerFlags: []string{
		"--default-not-ready-toleration-seconds=2", "--default-unreachable-toleration-seconds=2",
	}})
	if err := plane.StartControllers(); err != nil {
		t.Fatal(err)
	}
	return &cluster{
		T: t, plane: plane, client: kubernetes.NewForConfigOrDie(plane.Config()), nodes: map[string]*node{},
		hook: webhooktest.Start(t), bus: natstest.Start(t, nil), home: t.TempDir(),
	}
}

// addNode adds a node. What runs there sends what it sends to NATS to a webhook too, which shows what is repeated: a stream does not.
func (c *cluster) addNode(name string) {
	c.Helper()
	c.nodes[name] = startNode(c.T, c.plane.Config(), name, func(config map[string]any, podDir string) {
		config["stateDir"] = filepath.Join(podDir, "state")
		for _, key := range []string{"server", "replication"} {
			section, _ := config[key].(map[string]any)
			section["listen"] = fmt.Sprint("${POD_IP}", section["listen"])
		}
		for _, sink := range config["sinks"].([]any) {
			if nats, ok := sink.(map[string]any)["nats"].(map[string]any); ok {
				nats["urls"] = []any{c.bus.URL()}
			}
		}
		add := func(key string, item map[string]any) {
			list, _ := config[key].([]any)
			config[key] = append(list, item)
		}
		add("pipelines", map[string]any{"name": "hook", "sink": "hook"})
		add("sinks", map[string]any{"name": "hook", "webhook": map[string]any{"url": c.hook.URL()}})
	}, "CLUSTER_NAME=test")
}

// run runs kubectl or Helm, and returns what it prints.
func (c *cluster) run(p programs.Program, args ...string) string {
	c.Helper()
	out, err := c.try(p, args...)
	if err != nil {
		c.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

func (c *cluster) try(p programs.Program, args ...string) (string, error) {
	path, err := p.Path()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(c.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.plane.KubeconfigFile(), "HOME="+c.home)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	return c.run(programs.Kubectl(), args...)
}

// rolledOut waits until all replicas are of the newest revision, and ready.
func (c *cluster) rolledOut() {
	c.Helper()
	c.kubectl("rollout", "status", "deployment/kubeferry", "-n", namespace, "--timeout=120s")
}

// pods are those that are not being deleted, the leader first.
func (c *cluster) pods() []corev1.Pod {
	c.Helper()
	found, err := c.client.CoreV1().Pods(namespace).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Fatal(err)
	}
	pods := slices.DeleteFunc(found.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		switch {
		case c.leads(a):
			return -1
		case c.leads(b):
			return 1
		}
		return 0
	})
	return pods
}

func (c *cluster) leads(p corev1.Pod) bool {
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Status.PodIP+":8080/metrics", nil)
	if err != nil {
		c.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return err == nil && strings.Contains(string(text), "\nkubeferry_leader 1\n")
}

func ready(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// inSync waits until two replicas are ready, on two nodes of some, and the first one leads.
func (c *cluster) inSync(on ...string) (leader, standby corev1.Pod) {
	c.Helper()
	c.eventually("two replicas are ready on two nodes, and one leads", func() error {
		pods := c.pods()
		if len(pods) != 2 || !ready(pods[0]) || !ready(pods[1]) || !c.leads(pods[0]) {
			return fmt.Errorf("%d Pods", len(pods))
		}
		leader, standby = pods[0], pods[1]
		if a, b := leader.Spec.NodeName, standby.Spec.NodeName; a == b || !slices.Contains(on, a) || !slices.Contains(on, b) {
			return fmt.Errorf("on %s and %s", a, b)
		}
		return nil
	})
	return leader, standby
}

func (c *cluster) eventually(what string, check func() error) {
	c.Helper()
	err := check()
	for end := time.Now().Add(2 * time.Minute); err != nil; err = check() {
		if time.Now().After(end) {
			c.Fatalf("%s: %v", what, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// arrived returns when so many more records have arrived.
func (c *cluster) arrived(more int) {
	c.Helper()
	before := len(c.hook.Accepted())
	c.eventually("records arrive", func() error {
		if n := len(c.hook.Accepted()); n < before+more {
			return fmt.Errorf("%d, and %d are wanted", n, before+more)
		}
		return nil
	})
}

// longestPause is the longest time without a record since a moment.
func (c *cluster) longestPause(since time.Time) (longest time.Duration) {
	last := since
	for _, request := range c.hook.Requests() {
		if request.Time.After(since) && len(request.Records) > 0 && request.Status/100 == 2 {
			longest, last = max(longest, request.Time.Sub(last)), request.Time
		}
	}
	return max(longest, time.Since(last))
}

// records are the changes of ConfigMaps in the namespace shop, and gaps, as the webhook took them.
func (c *cluster) records() []oracle.Record {
	var bodies [][]byte
	for _, record := range c.hook.Accepted() {
		bodies = append(bodies, record.Body)
	}
	return c.parse(bodies)
}

// stored are those that the stream has.
func (c *cluster) stored() []oracle.Record {
	messages, err := c.bus.ReadAll(c.Context(), "KUBEFERRY")
	if err != nil {
		return nil
	}
	var bodies [][]byte
	for _, message := range messages {
		bodies = append(bodies, message.Data)
	}
	return c.parse(bodies)
}

func (c *cluster) parse(bodies [][]byte) (records []oracle.Record) {
	for _, body := range bodies {
		r, err := oracle.ParseCloudEvent(body)
		if err != nil {
			c.Error(err)
			continue
		}
		if r.Resource.Resource == "configmaps" && r.Type != oracle.Mark && (r.Namespace == "shop" || r.Type == oracle.Gap) {
			records = append(records, r)
		}
	}
	return records
}

// TestDeployment installs deploy/base on two nodes, restarts it, rolls out a configuration that does not load and back, drains the leader's
// node, drains the nodes of both replicas at once, and loses the leader's node, all under a load.
func TestDeployment(t *testing.T) {
	c := newCluster(t)
	c.addNode("a")
	c.addNode("b")
	if err := load.CreateNamespaces(t.Context(), c.plane.Config(), "shop"); err != nil {
		t.Fatal(err)
	}
	watched, err := oracle.Start(t.Context(), c.plane.Config(), oracle.Options{
		Cluster: "test", Resources: load.GVRs([]load.Resource{load.ConfigMaps()}), Namespaces: []string{"shop"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	c.kubectl("apply", "-k", filepath.Join("..", "..", "deploy", "base"))
	c.rolledOut()
	c.inSync("a", "b")
	end, result := c.load()
	c.arrived(100)
	repeated := func() int { return len(watched.Compare(c.records(), oracle.CompareOptions{}).Duplicates) }
	// graceful expects of what an operator does that the standby takes over at once, and that nothing is repeated.
	graceful := func(what string, does func()) {
		t.Helper()
		begun := time.Now()
		does()
		c.arrived(100)
		n, longest := repeated(), c.longestPause(begun)
		t.Logf("%s: %v, a pause of %v at most, %d records repeated",
			what, time.Since(begun).Round(time.Second), longest.Round(time.Millisecond), n)
		if n > 0 || longest > 1500*time.Millisecond {
			t.Errorf("%s: want a pause of 1.5 s at most, and no record repeated", what)
		}
	}

	graceful("rollout", func() {
		c.kubectl("rollout", "restart", "deployment/kubeferry", "-n", namespace)
		c.rolledOut()
		c.inSync("a", "b")
	})

	leader, standby := c.inSync("a", "b")
	graceful("a configuration that does not load", func() {
		c.misconfigure()
		c.eventually("it has restarted", func() error {
			for _, p := range c.pods() {
				if s := p.Status.ContainerStatuses; len(s) > 0 && s[0].RestartCount > 2 {
					return nil
				}
			}
			return fmt.Errorf("not yet")
		})
		for _, p := range c.pods() {
			if old := p.UID == leader.UID || p.UID == standby.UID; old != ready(p) {
				t.Errorf("Pod %s, of the former revision: %v, is ready: %v", p.Name, old, ready(p))
			}
		}
		c.kubectl("rollout", "undo", "deployment/kubeferry", "-n", namespace)
		c.rolledOut()
	})
	if again, _ := c.inSync("a", "b"); again.UID != leader.UID {
		t.Error("another one leads")
	}

	c.addNode("c")
	c.addNode("d")
	graceful("drain of the leader's node", func() {
		c.kubectl("drain", leader.Spec.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
		c.rolledOut()
	})
	c.kubectl("uncordon", leader.Spec.NodeName)

	leader, standby = c.inSync("a", "b", "c", "d")
	graceful("drain of both nodes at once", func() {
		var wg sync.WaitGroup
		for _, p := range []corev1.Pod{leader, standby} {
			wg.Go(func() {
				out, err := c.try(programs.Kubectl(), "drain", p.Spec.NodeName, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
				if err != nil {
					t.Errorf("drain %s: %v\n%s", p.Spec.NodeName, err, out)
				}
			})
		}
		wg.Wait()
		c.rolledOut()
	})
	for _, p := range []corev1.Pod{leader, standby} {
		c.kubectl("uncordon", p.Spec.NodeName)
	}

	lost, _ := c.inSync("a", "b", "c", "d")
	lostAt := time.Now()
	c.nodes[lost.Spec.NodeName].Lose()
	c.arrived(100)
	longest := c.longestPause(lostAt)
	t.Logf("the leader's node is lost: a pause of %v, %d records repeated", longest.Round(time.Millisecond), repeated())
	if longest > leaseDuration+2*time.Second {
		t.Errorf("a pause of %v", longest)
	}
	left := slices.DeleteFunc([]string{"a", "b", "c", "d"}, func(name string) bool { return name == lost.Spec.NodeName })
	c.inSync(left...)
	t.Logf("in sync on another node after %v", time.Since(lostAt).Round(time.Second))
	c.arrived(100)

	end()
	if err := watched.WaitCaughtUp(t.Context(), (<-result).UIDs...); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func() []oracle.Record{"webhook": c.records, "stream": c.stored} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		report, err := watched.WaitDelivered(ctx, read, oracle.CompareOptions{})
		cancel()
		if err == nil {
			err = report.Err()
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else {
			t.Logf("%s: %v", name, report)
		}
	}
}

// load changes ConfigMaps until end is called.
func (c *cluster) load() (end func(), result <-chan *load.Result) {
	until, done := make(chan struct{}), make(chan *load.Result, 1)
	go func() {
		result, err := load.Run(c.Context(), c.plane.Config(), load.Options{
			Resources: []load.Resource{load.ConfigMaps()}, Namespaces: []string{"shop"}, Objects: 60, Rate: 100, Until: until,
		})
		if err != nil && c.Context().Err() == nil {
			c.Error(err)
		}
		done <- result
	}()
	stop := sync.OnceFunc(func() { close(until) })
	c.Cleanup(stop)
	return stop, done
}

// misconfigure rolls out a configuration with a key that does not exist.
func (c *cluster) misconfigure() {
	c.Helper()
	deployments := c.client.AppsV1().Deployments(namespace)
	deployment, err := deployments.Get(c.Context(), "kubeferry", metav1.GetOptions{})
	if err != nil {
		c.Fatal(err)
	}
	spec := &deployment.Spec.Template.Spec
	for n, volume := range spec.Volumes {
		if volume.ConfigMap == nil {
			continue
		}
		configMaps := c.client.CoreV1().ConfigMaps(namespace)
		former, err := configMaps.Get(c.Context(), volume.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			c.Fatal(err)
		}
		bad := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Data: map[string]string{"kubeferry.yaml": former.Data["kubeferry.yaml"] + "\nretries: 3\n"},
		}
		if _, err := configMaps.Create(c.Context(), bad, metav1.CreateOptions{}); err != nil {
			c.Fatal(err)
		}
		patch := fmt.Sprintf(`[{"op": "replace", "path": "/spec/template/spec/volumes/%d/configMap/name", "value": "bad"}]`, n)
		if _, err := deployments.Patch(c.Context(), "kubeferry", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			c.Fatal(err)
		}
	}
}

// TestChart installs the chart with its defaults on two nodes.
func TestChart(t *testing.T) {
	c := newCluster(t)
	c.addNode("a")
	c.addNode("b")
	chart := filepath.Join("..", "..", "deploy", "chart")
	c.run(programs.Helm(), "install", "kubeferry", chart, "--namespace", namespace, "--create-namespace", "--wait", "--set", "config.cluster=test")
	c.inSync("a", "b")
}
