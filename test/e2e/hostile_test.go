package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
)

// TestExtendedHostileObjects runs the configuration of deploy/base, with `diff: jsonPatch`, a custom resource and Secrets besides, under
// the environment of its Deployment. A tenant makes the most expensive objects that the API server takes, and changes all of
// them, while the sink takes records and while it is away. kubeferry stays below the memory limit of the Deployment, and
// other objects arrive. With a state directory it is killed while the sink is away, and the next run reads the log.
func TestExtendedHostileObjects(t *testing.T) {
	disturbing(t)
	if err := load.InstallWidgets(t.Context(), plane(t).Config()); err != nil {
		t.Fatal(err)
	}
	t.Run("in memory", func(t *testing.T) { hostileObjects(t, "") })
	t.Run("with a state directory", func(t *testing.T) { hostileObjects(t, t.TempDir()) })
}

func hostileObjects(t *testing.T, stateDir string) {
	config := plane(t).Config()
	bus := natstest.Start(t, nil)
	good := newNamespace(t, "good")
	arrived := subscribeTo(t, bus, good)
	base := baseConfig(t, bus.URL(), stateDir)
	base.content["pipelines"].([]any)[0].(map[string]any)["diff"] = "jsonPatch"
	source := base.content["sources"].([]any)[0].(map[string]any)
	source["resources"] = append(source["resources"].([]any), "example.com/v1/widgets", "v1/secrets")
	e := base.run(t)
	e.WaitReady()
	memory := watchAnonymous(t, e)
	objects := objectsIn(t, config, configMaps, good)
	check := func(name string) {
		t.Helper()
		objects.Create(name, data("1"))
		arrived.wait(t, name, "ADDED")
	}
	check("before")

	// Versions before: more than previous.maxBytes of them, in many namespaces. The others are in the state directory.
	objects.Create("first", data(noise(100<<10)))
	arrived.wait(t, "first", "ADDED")
	h := hostileIn(t, config)
	h.fill(t, 8, 9)
	objects.Patch("first", map[string]any{"metadata": map[string]any{"labels": map[string]any{"changed": "yes"}}})
	if body := arrived.wait(t, "first", "MODIFIED"); stateDir != "" && strings.Contains(body, `"oldObjectKnown":false`) {
		t.Errorf("what was retained first is not on disk: %.200s", body)
	}

	h.write(t, 0)
	h.write(t, 1)
	check("changed")
	// What is read of the state file stays resident as long as nothing else needs the room.
	peak := func() int64 {
		most := peakMemory(t, e)
		if stateDir != "" {
			most = memory.most.Load()
		}
		return most
	}
	t.Logf("while the sink takes records: %d MiB", peak()>>20)
	bus.Stop()
	h.write(t, 2)
	if stateDir == "" {
		e.WaitLogged(2*wide, "the backlog is full")
	} else {
		eventually(t, 2*wide, "the backlog is on disk", func() error {
			if p := e.Status().Pipelines[0]; p.OnDisk == 0 {
				return fmt.Errorf("%+v", p)
			}
			return nil
		})
	}
	if code, body := e.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	below := func() {
		t.Helper()
		peak := peak()
		t.Logf("at most %d of %d MiB", peak>>20, base.limit>>20)
		if peak >= base.limit {
			t.Errorf("kubeferry took %d MiB, its limit is %d MiB", peak>>20, base.limit>>20)
		}
	}
	if stateDir != "" {
		below()
		e.Kill()
		e = base.run(t)
		memory = watchAnonymous(t, e)
		e.WaitReady()
	}
	bus.Restart()
	arrived = subscribeTo(t, bus, good)
	check("back")
	below()
	e.Kill() // the records that the bus never takes are dead letters, and the others may be many
}

// TestExtendedHostileObjectsInTheLog has a tenant make objects that are megabytes of the same letter while the sink is away: they take next to
// nothing on disk. The leader is killed. When the sink is back, the standby that leads now does not read all of them at once. Both
// replicas of deploy/base stay below their memory limit.
func TestExtendedHostileObjectsInTheLog(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	emptied(t, bad)
	hook := startTenantHook(t, "none")
	hook.away(true)
	base := baseConfig(t, "nats://none:4222", "")
	pipeline := base.content["pipelines"].([]any)[0].(map[string]any)
	pipeline["diff"], pipeline["sources"] = "jsonPatch", []any{"s"}
	text, err := json.Marshal(base.content["pipelines"])
	if err != nil {
		t.Fatal(err)
	}
	r := newReplicas(t, good, fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s, %s]}}]
pipelines: %s
sinks: [{name: bus, webhook: {url: %q}}]
`, bad, good, text, hook.server.URL))
	grantWatchTo(t, config, bad, good, "exporter")()
	r.adjust = append(r.adjust, plain(t), func(o *process.Options) { o.Env = base.env })
	r.patient()
	r.Start()
	r.Leader()
	r.Start()
	leader, _ := r.WaitInSync()
	const count = 120
	client := protobufClient(t)
	var writing sync.WaitGroup
	for worker := range 4 {
		writing.Go(func() {
			for n := worker; n < count; n += 4 {
				err := patiently(t.Context(), created(client.CoreV1().ConfigMaps(bad).Create, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", n)}, Data: map[string]string{"value": strings.Repeat("<", 1<<20-64)},
				}))
				if err != nil && !apierrors.IsAlreadyExists(err) {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	written := writeMany(t, objectsIn(t, config, configMaps, good), "good", 10, 0, data("taken"))
	eventually(t, 2*wide, "they wait", func() error {
		if p := leader.Status().Pipelines[0]; p.Waiting < uint64(count+len(written)) || p.OnDisk == 0 {
			return fmt.Errorf("%+v", p)
		}
		return nil
	})
	lasting(t, commitInterval)
	r.WaitInSync()
	below := func(what string, m *member) {
		t.Helper()
		peak := peakMemory(t, m.exporter)
		t.Logf("%s: at most %d of %d MiB", what, peak>>20, base.limit>>20)
		if peak >= base.limit {
			t.Errorf("%s took %d MiB, its limit is %d MiB", what, peak>>20, base.limit>>20)
		}
	}
	below("the leader while the sink is away", leader)
	leader.Kill()
	r.Remove(leader)
	leader, _ = r.Leader()
	below("the former standby", leader)
	hook.away(false)
	hook.expect(t, "what waited behind large objects", written)
	leader.WaitSettled(2 * wide)
	below("the former standby when all is delivered", leader)
}

// base is deploy/base, to be run on this machine.
type base struct {
	// limit is the container's memory limit in bytes.
	limit   int64
	env     []string
	content map[string]any // of the configuration
}

// baseConfig reads deploy/base, and makes it one replica, with its state in stateDir, or without one.
func baseConfig(t *testing.T, natsURL, stateDir string) *base {
	t.Helper()
	dir := filepath.Join("..", "..", "deploy", "base")
	var deployment appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join(dir, "deployment.yaml"))), &deployment); err != nil {
		t.Fatal(err)
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	b := &base{limit: container.Resources.Limits.Memory().Value()}
	for _, variable := range container.Env {
		value := variable.Value
		switch {
		case strings.HasPrefix(variable.Name, "POD_"):
			continue // for replicas
		case variable.ValueFrom != nil && variable.ValueFrom.ResourceFieldRef.Resource == "limits.memory":
			value = strconv.FormatInt(b.limit, 10)
		case variable.ValueFrom != nil:
			t.Fatalf("%s has its value from elsewhere", variable.Name)
		}
		b.env = append(b.env, variable.Name+"="+value)
	}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(dir, "kubeferry.yaml"))), &b.content); err != nil {
		t.Fatal(err)
	}
	b.env = append(b.env, "CLUSTER_NAME=test") // which an overlay sets
	b.content["sinks"].([]any)[0].(map[string]any)["nats"].(map[string]any)["urls"] = []any{natsURL}
	without := []string{"leaderElection", "replication"}
	if b.content["stateDir"] = stateDir; stateDir == "" {
		without = append(without, "stateDir", "deadLetters")
		delete(b.content["pipelines"].([]any)[0].(map[string]any), "backlog")
	}
	for _, key := range without {
		delete(b.content, key)
	}
	b.content["server"] = map[string]any{"listen": "127.0.0.1:0"}
	return b
}

func (b *base) run(t *testing.T) *exporter {
	t.Helper()
	text, err := json.Marshal(b.content) // which is YAML too
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "kubeferry.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return runExporter(t, plane(t).KubeconfigFile(), file, plain(t), func(o *process.Options) { o.Env = b.env })
}

// peakMemory is the most that kubeferry has had in memory, in bytes.
func peakMemory(t *testing.T, e *exporter) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", e.process.Pid()))
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("there is no /proc, so that memory cannot be measured")
	}
	_, after, found := strings.Cut(string(text), "VmHWM:")
	fields := strings.Fields(after)
	if err != nil || !found || len(fields) < 1 {
		t.Fatalf("kubeferry's memory: %v %s", err, text)
	}
	kilobytes, err := strconv.ParseInt(fields[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

// arrivals are the records of one namespace's ConfigMaps.
type arrivals struct {
	mu     sync.Mutex // guards what follows
	bodies map[string]string
}

func subscribeTo(t *testing.T, bus *natstest.Server, namespace string) *arrivals {
	t.Helper()
	a := &arrivals{bodies: map[string]string{}}
	conn, err := nats.Connect(bus.URL(), nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	_, err = conn.Subscribe("k8s.*.core.configmaps."+namespace+".*", func(m *nats.Msg) {
		var e event
		_ = json.Unmarshal(m.Data, &e)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.bodies[e.Data.Type+" "+e.Data.Object.Metadata.Name] = string(m.Data)
	})
	if err == nil {
		err = conn.Flush()
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *arrivals) wait(t *testing.T, name, typ string) (body string) {
	t.Helper()
	eventually(t, 2*wide, typ+" of "+name, func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		var ok bool
		if body, ok = a.bodies[typ+" "+name]; !ok {
			return errors.New("it is not there")
		}
		return nil
	})
	if _, err := oracle.ParseCloudEvent([]byte(body)); err != nil {
		t.Error(err)
	}
	return body
}

// hostile writes expensive objects in namespaces of its own.
type hostile struct {
	client    *kubernetes.Clientset
	widgets   *objects
	namespace string
}

func hostileIn(t *testing.T, config *rest.Config) *hostile {
	t.Helper()
	namespace := newNamespace(t, "hostile")
	emptied(t, namespace)
	return &hostile{client: protobufClient(t), widgets: objectsIn(t, config, load.Widgets().GVR, namespace), namespace: namespace}
}

// emptied deletes what a test has made in a namespace at its end: it would be in the way of the tests that read all objects.
func emptied(t *testing.T, namespace string) {
	t.Helper()
	config := plane(t).Config()
	config.QPS = -1
	client, err := metadata.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, gvr := range []schema.GroupVersionResource{
			configMaps, events, load.Widgets().GVR, configMaps.GroupVersion().WithResource("secrets"),
			{Group: "apps", Version: "v1", Resource: "deployments"},
			{Group: "apps", Version: "v1", Resource: "statefulsets"},
			{Group: "apps", Version: "v1", Resource: "daemonsets"},
		} {
			if err := deleteAll(context.WithoutCancel(t.Context()), client.Resource(gvr).Namespace(namespace)); err != nil {
				t.Errorf("delete all %s in %s: %v", gvr.Resource, namespace, err)
			}
		}
	})
}

// deleteAll deletes the objects of a collection one by one. DeleteCollection would return all of them, as gigabytes of JSON.
func deleteAll(ctx context.Context, in metadata.ResourceInterface) error {
	list, err := in.List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) { // the resource is gone
		return nil
	}
	if err != nil {
		return err
	}
	for _, o := range list.Items {
		if err := in.Delete(ctx, o.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// protobufClient writes objects that are larger as JSON than a request may be.
func protobufClient(t *testing.T) *kubernetes.Clientset {
	t.Helper()
	config := plane(t).Config()
	config.QPS, config.ContentType, config.WarningHandler = -1, "application/vnd.kubernetes.protobuf", rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// fill creates ConfigMaps of nearly a megabyte that cannot be compressed.
func (h *hostile) fill(t *testing.T, namespaces, each int) {
	t.Helper()
	value := noise(950 << 10)
	var writing sync.WaitGroup
	for range namespaces {
		namespace := newNamespace(t, "full")
		emptied(t, namespace)
		writing.Go(func() {
			for n := range each {
				err := patiently(t.Context(), created(h.client.CoreV1().ConfigMaps(namespace).Create, &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("full-", n)}, Data: map[string]string{"value": value},
				}))
				if err != nil && !apierrors.IsAlreadyExists(err) {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
}

// write creates the objects, or changes all of them: nothing that can differ between two rounds is the same.
func (h *hostile) write(t *testing.T, round int) {
	t.Helper()
	letter := "<>"[round%2 : round%2+1] // six bytes of JSON each
	name := "ab"[round%2 : round%2+1]
	escaped := func(n int) string { return strings.Repeat(letter, n) }
	var writing sync.WaitGroup
	write := func(what string, create func(ctx context.Context) error, update func(ctx context.Context) error) {
		writing.Go(func() {
			err := patiently(t.Context(), create)
			if apierrors.IsAlreadyExists(err) {
				err = patiently(t.Context(), update)
			}
			if err != nil {
				t.Errorf("%s: %.300v", what, err)
			}
		})
	}
	for n := range 6 {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", n)}, Data: map[string]string{"value": escaped(1<<20 - 64)}}
		api := h.client.CoreV1().ConfigMaps(h.namespace)
		write("ConfigMap", created(api.Create, o), updated(api.Update, o))
	}
	for n := range 2 {
		o := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name:        fmt.Sprint("large-", n),
			Annotations: map[string]string{"example.com/a": escaped(200 << 10)},
		}, Data: map[string][]byte{"value": []byte(escaped(1<<20 - 64))}}
		api := h.client.CoreV1().Secrets(h.namespace)
		write("Secret", created(api.Create, o), updated(api.Update, o))
	}
	for n := range 2 {
		o := &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", n)}, Type: "Warning", Message: escaped(1_400_000),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: h.namespace, Name: "none"},
		}
		api := h.client.CoreV1().Events(h.namespace)
		write("Event", created(api.Create, o), updated(api.Update, o))
	}
	for what, spec := range map[string]corev1.PodSpec{
		"long-": podOf(corev1.EnvVar{Name: "A", Value: escaped(1_400_000)}),
		"many-": podOf(repeated(corev1.EnvVar{Name: name}, 190_000)...),
	} {
		labels := map[string]string{"a": "b"}
		template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
		selector, meta := &metav1.LabelSelector{MatchLabels: labels}, metav1.ObjectMeta{Name: what + "0"}
		apps := h.client.AppsV1()
		d := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: new(int32), Selector: selector, Template: template}}
		write("Deployment", created(apps.Deployments(h.namespace).Create, d), updated(apps.Deployments(h.namespace).Update, d))
		s := &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: new(int32), Selector: selector, Template: template}}
		write("StatefulSet", created(apps.StatefulSets(h.namespace).Create, s), updated(apps.StatefulSets(h.namespace).Update, s))
		ds := &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}
		write("DaemonSet", created(apps.DaemonSets(h.namespace).Create, ds), updated(apps.DaemonSets(h.namespace).Update, ds))
	}
	// A JSON Patch would repeat the long key for each item.
	spec := map[string]any{"spec": map[string]any{strings.Repeat("k", 50<<10): repeated[any](int64(round), 10_000)}}
	if round == 0 {
		h.widgets.Create("long", spec)
	} else {
		h.widgets.Patch("long", spec)
	}
	writing.Wait()
}

// patiently repeats a write that the API server did not finish in its time, which is half a minute: on a busy machine one of such a large
// object may take longer. What was created nevertheless exists at the next attempt.
func patiently(ctx context.Context, write func(context.Context) error) error {
	for {
		err := write(ctx)
		if !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) || ctx.Err() != nil {
			return err
		}
	}
}

func created[T any](create func(context.Context, *T, metav1.CreateOptions) (*T, error), object *T) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := create(ctx, object, metav1.CreateOptions{})
		return err
	}
}

func updated[T any](update func(context.Context, *T, metav1.UpdateOptions) (*T, error), object *T) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := update(ctx, object, metav1.UpdateOptions{})
		return err
	}
}

func podOf(env ...corev1.EnvVar) corev1.PodSpec {
	return corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: new(int64),
		Containers: []corev1.Container{{
			Name: "c", Image: "none", ImagePullPolicy: corev1.PullAlways, TerminationMessagePolicy: corev1.TerminationMessageReadFile, Env: env,
		}},
	}
}

func repeated[T any](value T, n int) []T {
	values := make([]T, n)
	for i := range values {
		values[i] = value
	}
	return values
}
