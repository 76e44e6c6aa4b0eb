package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedTenantWhoseRecordsHang has a receiver hang on all records of one tenant, whose pipeline shares the sink with another one.
// The records of that arrive, and at their first attempt: they have one.
func TestExtendedTenantWhoseRecordsHang(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	hook, alone := startTenantHook(t, bad), startTenantHook(t, bad)
	hook.answer(0)
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
shutdown: {grace: 1s}
sources:
  - {name: bad, resources: [v1/configmaps], namespaces: {include: [%s]}}
  - {name: good, resources: [v1/configmaps], namespaces: {include: [%s]}}
pipelines:
  - {name: bad, sources: [bad], sink: shared}
  - {name: good, sources: [good], sink: shared, retry: {attempts: 1}}
  - {name: alone, sources: [good], sink: alone}
sinks:
  - {name: shared, webhook: {url: %q, concurrency: 3, timeout: 15s}}
  - {name: alone, webhook: {url: %q}}
`, bad, good, hook.server.URL, alone.server.URL))
	e.WaitReady()
	writeMany(t, objectsIn(t, config, configMaps, bad), "bad", 60, 0, data("hangs"))
	written := writeMany(t, objectsIn(t, config, configMaps, good), "good", 4*goodRate, goodRate, data("taken"))
	expectSoon(t, e, written, alone, map[string]*tenantHook{"beside records that hang": hook})
	if dead := e.Metrics().sum("kubeferry_records_dead_total", "pipeline=good"); dead != 0 {
		t.Errorf("%v records died that never were in a request", dead)
	}
	e.Kill()
}

// TestExtendedSinksThatHang has sinks of three kinds stop to take anything, without an error: a receiver, a NATS server behind a network that
// swallows everything, and a standard output that nobody reads. Their attempts end, and show; /healthz passes, as a restart would not
// help; another pipeline goes on; and all arrives once they take records again.
func TestExtendedSinksThatHang(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "hang")
	hook, healthy := webhooktest.Start(t), webhooktest.Start(t)
	bus := natstest.Start(t, nil)
	network := proxy.NewTCP(t, strings.TrimPrefix(bus.URL(), "nats://"))
	network.Come()
	pipe := filepath.Join(t.TempDir(), "stdout")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDWR, 0) // which is open before there is a writer
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, snapshot: never}]
pipelines:
  - {name: hook, sink: hook}
  - {name: bus, sink: bus}
  - {name: pipe, sink: pipe, format: json}
  - {name: healthy, sink: healthy}
sinks:
  - {name: hook, webhook: {url: %q, timeout: 1s}}
  - {name: bus, nats: {urls: ["nats://%s"], subject: "k8s.{name}", timeout: 1s, stream: {name: HANG, create: true}}}
  - {name: pipe, stdout: {timeout: 1s}}
  - {name: healthy, webhook: {url: %q}}
`, namespace, hook.URL(), network.Addr(), healthy.URL()), func(o *process.Options) { o.Stdout = pipe })
	e.WaitReady()
	objects := objectsIn(t, config, configMaps, namespace)
	hook.Use(webhooktest.Always(webhooktest.Answer{Hang: true}))
	network.Stall()
	objects.Create("first", data(noise(200<<10))) // more than a pipe holds
	for _, pipeline := range []string{"hook", "bus", "pipe"} {
		eventually(t, wide, pipeline+": attempts end", func() error {
			if n := e.Metrics().sum("kubeferry_sink_errors_total", "pipeline="+pipeline); n < 2 {
				return fmt.Errorf("%v have", n)
			}
			return nil
		})
		e.WaitSink(2*wide, pipeline, false) // after ten of them
	}
	for _, p := range e.Status().Pipelines {
		if hangs := p.Name != "healthy"; hangs && (p.State != "away" || p.LastError == "") || !hangs && p.State != "available" {
			t.Errorf("%+v", p)
		}
	}
	if code, body := e.Get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	objects.Create("second", data("1"))
	wait(t, hookReader(t, healthy, cloudEvents), "second", oracle.Added)
	hook.Use(webhooktest.Accept())
	network.Come()
	var reading sync.WaitGroup
	reading.Go(func() { _, _ = io.Copy(io.Discard, reader) })
	e.WaitSettled(2 * wide)
	wait(t, hookReader(t, hook, cloudEvents), "second", oracle.Added)
	e.Stop()
	_ = reader.Close()
	reading.Wait()
}

// TestExtendedTenantFillsTheDeadLetters has a receiver refuse the records of one tenant for good, until there is no room for more dead
// letters. The others arrive; what waits is reported, and nothing of it is lost.
func TestExtendedTenantFillsTheDeadLetters(t *testing.T) {
	beside(t)
	const bound, refused = 16 << 20, 24
	config := plane(t).Config()
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	hook := startTenantHook(t, bad)
	hook.answer(http.StatusBadRequest)
	text := fmt.Sprintf(`
stateDir: %q
deadLetters: {maxBytes: %d}
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s, %s]}}]
pipelines: [{name: p, sink: hook}]
sinks: [{name: hook, webhook: {url: %q}}]
`, filepath.Join(t.TempDir(), "state"), bound, bad, good, hook.server.URL)
	e := startExporter(t, plane(t).KubeconfigFile(), text, plain(t)) // it reads and writes many megabytes
	e.WaitReady()
	poisoned := writeMany(t, objectsIn(t, config, configMaps, bad), "bad", refused, 0, data(noise(900<<10)))
	hook.expect(t, "beside dead letters", writeMany(t, objectsIn(t, config, configMaps, good), "good", 3*goodRate, goodRate, data("taken")))
	e.WaitLogged(wide, "cannot write a dead letter; the record waits", "deadLetters.maxBytes")
	m := e.Metrics()
	if bytes, full := m.sum("kubeferry_dead_letter_bytes"), m.sum("kubeferry_dead_letters_full"); full != 1 || bytes > bound {
		t.Errorf("full: %v, with %v bytes", full, bytes)
	}
	hook.expect(t, "beside dead letters that wait", writeMany(t, objectsIn(t, config, configMaps, good), "late", 3*goodRate, goodRate, data("taken")))
	hook.answer(http.StatusOK)
	file := writeConfig(t, t.TempDir(), text)
	binary, err := programs.Exporter().Path()
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 2*wide, "replay sends all of it", func() error {
		if output, code := runProgram(t, binary, "replay", "--config", file); code != 0 {
			t.Fatalf("exit code %d and\n%s", code, output)
		}
		hook.mu.Lock()
		defer hook.mu.Unlock()
		for _, w := range poisoned {
			if _, ok := hook.arrived[w.id]; !ok {
				return errors.New("there is none of " + w.id)
			}
		}
		return nil
	})
}

// TestExtendedTenantFillsTheStream has a tenant write more than a stream of deploy/base takes, with its size made small. The unread
// records of others stay in it, what waits is reported, and all of it arrives once the stream has room.
func TestExtendedTenantFillsTheStream(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	bad, good := newNamespace(t, "bad"), newNamespace(t, "good")
	bus := natstest.Start(t, nil)
	base := baseConfig(t, bus.URL(), "")
	sink := base.content["sinks"].([]any)[0].(map[string]any)
	stream := sink["nats"].(map[string]any)["stream"].(map[string]any)
	stream["maxBytes"] = "1Mi"
	base.content["sources"] = []any{map[string]any{
		"name": "s", "resources": []any{"v1/configmaps"}, "namespaces": map[string]any{"include": []any{bad, good}},
	}}
	delete(base.content["pipelines"].([]any)[0].(map[string]any), "sources")
	e := base.run(t)
	e.WaitReady()
	objectsIn(t, config, configMaps, good).Create("unread", data("1"))
	e.WaitSettled(wide)
	writeMany(t, objectsIn(t, config, configMaps, bad), "bad", 40, 0, data(noise(100<<10)))
	objectsIn(t, config, configMaps, good).Create("late", data("1"))
	e.WaitSink(wide, "stream", false)
	name := stream["name"].(string)
	stored := func() (names []string) {
		messages, err := bus.ReadAll(within(t, wide), name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if name := m.Subject[strings.LastIndexByte(m.Subject, '.')+1:]; name != "_" { // that of a snapshot's marks
				names = append(names, name)
			}
		}
		return names
	}
	if names := stored(); !slices.Contains(names, "unread") || len(names) >= 42 { // a small one may fit
		t.Errorf("the stream holds %q", names)
	}
	larger := bus.StreamInfo(t.Context(), name).Config
	larger.MaxBytes = 64 << 20
	bus.UpdateStream(t.Context(), larger)
	e.WaitSettled(2 * wide)
	if names := stored(); len(names) != 42 || !slices.Contains(names, "late") {
		t.Errorf("the stream holds %q", names)
	}
}

// TestExtendedLargeObjectsBeforeADeadSink has objects of six bytes of JSON for each byte that the API server counts wait for a sink that
// does not answer. They count in full towards the bound of a backlog, with the previous version that a record holds, and one that finds no
// room in memory is not read from the log over and over.
func TestExtendedLargeObjectsBeforeADeadSink(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	small, large := newNamespace(t, "spins"), newNamespace(t, "counts")
	hung, alsoHung := startTenantHook(t, small), startTenantHook(t, large)
	hung.answer(0)
	alsoHung.answer(0)
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources:
  - {name: spins, resources: [v1/configmaps], namespaces: {include: [%s]}}
  - {name: counts, resources: [v1/configmaps], namespaces: {include: [%s]}}
pipelines:
  - {name: spins, sources: [spins], sink: spins, backlog: {maxBytes: 2Mi}}
  - {name: counts, sources: [counts], sink: counts, diff: oldObject, backlog: {maxBytes: 16Mi, overflow: block}}
sinks: # a record that has failed leaves memory, so none fails
  - {name: spins, webhook: {url: %q, timeout: 10m}}
  - {name: counts, webhook: {url: %q, timeout: 10m}}
`, t.TempDir(), small, large, hung.server.URL, alsoHung.server.URL), plain(t))
	e.WaitReady()
	objectsIn(t, config, configMaps, small).Create("first", data(noise(900<<10)))
	client := protobufClient(t)
	for n := range 6 {
		for _, namespace := range []string{small, large}[min(n/3, 1):] {
			_, err := client.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("large-", n)}, Data: map[string]string{"value": strings.Repeat("<", 1<<20-64)},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n == 0 {
			objectsIn(t, config, configMaps, large).Patch("large-0", map[string]any{"metadata": map[string]any{"labels": map[string]any{"changed": "yes"}}})
		}
	}
	eventually(t, wide, "the one is on disk, and the source of the other waits", func() error {
		s := e.Status()
		if s.Pipelines[0].Waiting != 4 || s.Pipelines[0].OnDisk == 0 || !s.Watches[0].Blocked && !s.Watches[1].Blocked {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	eventually(t, wide, "it is idle", func() error { // what reads the log over and over never is
		before := e.Metrics().sum("process_cpu_seconds_total")
		const watched = 2 * time.Second
		lasting(t, watched)
		if used := e.Metrics().sum("process_cpu_seconds_total") - before; used > 0.5 {
			return fmt.Errorf("it used %.1f s of CPU in %v", used, watched)
		}
		return nil
	})
	if waiting := e.Status().Pipelines[1].Waiting; waiting != 1 {
		t.Errorf("%d changes wait in 16 MiB of memory, of which the first takes 6 MiB, and the second 12 MiB", waiting)
	}
	e.Kill()
}

// TestExtendedDeeplyNestedObject has a tenant make a custom resource that is nested as deeply as the API server allows, more deeply than
// JSON libraries read around it, and whose record is refused. Objects of others arrive, also from watches that are opened
// again, and the dead letters of others are replayed.
func TestExtendedDeeplyNestedObject(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	deep, good := newNamespace(t, "0-deep"), newNamespace(t, "good") // the first of a list
	widgets := objectsIn(t, config, load.Widgets().GVR, good)
	proxy, kubeconfig := proxyOf(t, config)
	proxy.Come()
	hook := webhooktest.Start(t)
	hook.Use(webhooktest.Status(http.StatusBadRequest))
	text := fmt.Sprintf("stateDir: %q\n", filepath.Join(t.TempDir(), "state")) +
		hookConfig("[example.com/v1/widgets]", fmt.Sprintf("{include: [%s, %s*]}, snapshot: never", deep, good), hook.URL())
	e := startExporter(t, kubeconfig, text)
	e.WaitReady()
	createRaw(t, "/apis/example.com/v1/namespaces/"+deep+"/widgets",
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"deep"},"spec":`+strings.Repeat("[", 9_999)+strings.Repeat("]", 9_999)+`}`)
	defer deleteRaw(t, "/apis/example.com/v1/namespaces/"+deep+"/widgets/deep") // no other client can read a list that has it
	widgets.Create("before", map[string]any{"spec": map[string]any{"size": 1}})
	for _, name := range []string{"deep", "before"} {
		e.WaitLogged(wide, "a record becomes a dead letter", "name:"+name)
	}
	hook.Use(webhooktest.Accept())
	proxy.Cut()
	widgets.Create("after", map[string]any{"spec": map[string]any{"size": 1}})
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "after", oracle.Added)

	output, code := runToEnd(t, "replay", "--config", writeConfig(t, t.TempDir(), text))
	if code != 1 || !strings.Contains(output, "delivered 1 dead letters, 1 are left") {
		t.Errorf("replay: exit code %d and\n%s", code, output)
	}
	wait(t, read, "before", oracle.Added)
}

// TestExtendedOddNames has a tenant create a Role, whose name may hold nearly everything: none of it becomes another header, subject,
// path or line.
func TestExtendedOddNames(t *testing.T) {
	beside(t)
	const odd = "odd\r\nX-Injected: yes\r\n\r\n\x00 *.>$ \u202e\"} {\n"
	config := plane(t).Config()
	namespace := newNamespace(t, "odd")
	bare, binary := webhooktest.Start(t), webhooktest.Start(t)
	bus := natstest.Start(t, nil)
	file := filepath.Join(t.TempDir(), "out.jsonl")
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [rbac.authorization.k8s.io/v1/roles], namespaces: {include: [%s]}}]
pipelines:
  - {name: bare, sink: bare, format: raw}
  - {name: binary, sink: binary, format: cloudevents-binary, profile: knative}
  - {name: jetstream, sink: bus, diff: jsonPatch}
  - {name: file, sink: file, format: json}
sinks:
  - {name: bare, webhook: {url: %q}}
  - {name: binary, webhook: {url: %q}}
  - {name: bus, nats: {urls: [%q], subject: "k8s.{cluster}.{group}.{resource}.{namespace}.{name}", stream: {name: ODD, create: true}}}
  - {name: file, file: {path: %q}}
`, filepath.Join(t.TempDir(), "state"), namespace, bare.URL(), binary.URL(), bus.URL(), file)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	roles := objectsIn(t, config, schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, namespace)
	roles.Create(odd, nil)
	written := lineReader(t, file, oracle.ParseJSON)
	arrived := func(n int) {
		t.Helper()
		eventually(t, wide, "all arrive", func() error {
			if lines := written(); len(lines) < n {
				return fmt.Errorf("%d lines", len(lines))
			}
			return nil
		})
		e.WaitSettled(wide)
	}
	arrived(1)
	e.Stop()
	e = startExporter(t, plane(t).KubeconfigFile(), text) // which reads it from the state directory
	e.WaitReady()
	roles.Create("after", nil)
	arrived(2)

	for name, hook := range map[string]*webhooktest.Receiver{"raw": bare, "binary": binary} {
		for _, r := range hook.Requests() {
			if r.Header.Get("X-Injected") != "" || r.Path != "/" || r.Status != http.StatusOK {
				t.Errorf("%s: %d %s %v", name, r.Status, r.Path, r.Header)
			}
		}
		if n := len(hook.Accepted()); n != 2 {
			t.Errorf("%s: %d records, want 2", name, n)
		}
	}
	stored, err := bus.ReadAll(within(t, wide), "ODD")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range stored {
		if strings.Count(m.Subject, ".") != 5 || strings.ContainsAny(m.Subject, " *>\r\n") || m.Header.Get("X-Injected") != "" {
			t.Errorf("subject %q, header %v", m.Subject, m.Header)
		}
	}
	stored = slices.DeleteFunc(stored, func(m natstest.Message) bool { return strings.HasSuffix(m.Subject, "._") }) // a snapshot's marks
	lines := written()
	if len(stored) != 2 || len(lines) != 2 || lines[0].Name != odd {
		t.Errorf("%d messages, %d lines: %+v", len(stored), len(lines), lines)
	}
}

// TestExtendedLongNames has a tenant create Roles whose names are longer than a key of the state file may be, and than a name in a subject:
// they arrive, the state is written, and the end of one is found after a restart.
func TestExtendedLongNames(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "long")
	hook := webhooktest.Start(t)
	bus := natstest.Start(t, nil)
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [rbac.authorization.k8s.io/v1/roles], namespaces: {include: [%s]}}]
pipelines:
  - {name: hook, sink: hook, diff: jsonPatch}
  - {name: bus, sink: bus, format: cloudevents-binary}
sinks:
  - {name: hook, webhook: {url: %q}}
  - {name: bus, nats: {urls: [%q], stream: {name: LONG, create: true}}}
`, filepath.Join(t.TempDir(), "state"), namespace, hook.URL(), bus.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	roles := objectsIn(t, config, schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"}, namespace)
	arrived := func(object *unstructured.Unstructured, typ string) {
		t.Helper()
		eventually(t, wide, typ+" arrives", func() error {
			for _, record := range hook.Accepted() {
				var event struct{ ID string }
				if err := json.Unmarshal(record.Body, &event); err != nil {
					return err
				}
				if strings.HasPrefix(event.ID, clusterName+"/"+string(object.GetUID())+"/") && strings.HasSuffix(event.ID, "/"+typ) {
					return nil
				}
			}
			return errors.New("it does not")
		})
		e.WaitSettled(wide)
	}
	long := strings.Repeat("x", 40<<10)
	first, second := roles.Create(long+"1", nil), roles.Create(long+"2", nil)
	arrived(first, oracle.Added)
	arrived(second, oracle.Added)
	e.Stop()
	roles.Delete(long + "1")
	after := roles.Create("after", nil)
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	arrived(first, oracle.Deleted)
	arrived(after, oracle.Added)
	roles.Patch(long+"2", map[string]any{"metadata": map[string]any{"labels": map[string]any{"a": "b"}}})
	arrived(second, oracle.Modified)
	if dead := e.Metrics().sum("kubeferry_records_dead_total"); dead != 0 {
		t.Errorf("%v records died", dead)
	}
}

// createRaw creates an object of JSON that is sent as it is.
func createRaw(t *testing.T, path, body string) {
	t.Helper()
	request := protobufClient(t).CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body([]byte(body))
	if err := request.Do(t.Context()).Error(); err != nil {
		t.Fatalf("%s: %.300v", path, err)
	}
}

func deleteRaw(t *testing.T, path string) {
	t.Helper()
	if _, err := protobufClient(t).CoreV1().RESTClient().Delete().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(t.Context()); err != nil {
		t.Errorf("%s: %.300v", path, err)
	}
}

// TestExtendedHeldConnections has a Pod hold hundreds of connections to the admin port, with requests that never end: the probes
// answer, most of the connections are closed at once, and the others soon.
func TestExtendedHeldConnections(t *testing.T) {
	beside(t)
	const held, most = 300, 64
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`, newNamespace(t, "held")))
	e.WaitReady()
	var dialer net.Dialer
	conns := make([]net.Conn, held)
	for n := range conns {
		conn, err := dialer.DialContext(t.Context(), "tcp", e.address)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		_, _ = conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: held\r\nX-Slow: "))
		conns[n] = conn
	}
	e.AnswersSoon(2*time.Second, "/healthz", "/readyz", "/metrics")
	open := func() (n int) {
		for _, conn := range conns {
			_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
			var timeout net.Error
			if _, err := conn.Read(make([]byte, 1)); errors.As(err, &timeout) && timeout.Timeout() {
				n++
			}
		}
		return n
	}
	eventually(t, 3*time.Second, "most are closed at once", func() error {
		if n := open(); n > most {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
	eventually(t, wide, "all are closed", func() error {
		if n := open(); n > 0 {
			return fmt.Errorf("%d are open", n)
		}
		return nil
	})
}
