package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// marksOf are the marks that a receiver accepted.
func marksOf(t *testing.T, hook *webhooktest.Receiver) []oracle.Record {
	t.Helper()
	var marks []oracle.Record
	for _, record := range hook.Marks() {
		m, err := oracle.ParseCloudEvent(record.Body)
		if err != nil {
			t.Error(err)
		}
		marks = append(marks, m)
	}
	return marks
}

// expectMarks waits for a number of marks that a receiver accepted, and returns them.
func expectMarks(t *testing.T, hook *webhooktest.Receiver, n int) (marks []oracle.Record) {
	t.Helper()
	eventually(t, wide, fmt.Sprintf("%d marks", n), func() error {
		if marks = marksOf(t, hook); len(marks) != n {
			return fmt.Errorf("got %+v", marks)
		}
		return nil
	})
	return marks
}

// TestSnapshots follows a pipeline from its first start over a removal from the file, with what was deleted meanwhile, to
// snapshots on demand, one of which a restart interrupts. A mark ends each.
func TestSnapshots(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "snapshots")
	objects := objectsIn(t, config, configMaps, namespace)
	names := []string{"a", "b", "c"}
	for _, name := range names {
		objects.Create(name, data("1"))
	}
	hook, other := webhooktest.Start(t), webhooktest.Start(t)
	dir := t.TempDir()
	text := func(pipelines string) string {
		return fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [%s]
sinks: [{name: hook, webhook: {url: %q}}, {name: other, webhook: {url: %q}}]
`, dir, namespace, pipelines, hook.URL(), other.URL())
	}
	filter := `filters: [{expr: 'object.metadata.name != "kube-root-ca.crt"'}]`
	both := text("{name: p, sink: hook, " + filter + "}, {name: q, sink: other}")
	file := writeConfig(t, t.TempDir(), both)
	read := hookReader(t, hook, cloudEvents)

	e := startExporter(t, plane(t).KubeconfigFile(), both)
	marks := expectMarks(t, hook, 1)
	if last := marks[0]; last.Count != 3 || !last.Complete || last.Namespace != namespace {
		t.Errorf("got %+v", marks)
	}
	e.Stop()

	e = startExporter(t, plane(t).KubeconfigFile(), text("{name: q, sink: other}"))
	e.WaitReady()
	objects.Delete("c")
	wait(t, hookReader(t, other, cloudEvents), "c", oracle.Deleted)
	e.WaitSettled(wide)
	e.Stop()
	before := len(read())
	e = startExporter(t, plane(t).KubeconfigFile(), both)
	marks = expectMarks(t, hook, 2)
	if last := marks[1]; last.Of == marks[0].Of || last.Count != 2 || !last.Complete {
		t.Errorf("after it came back: got %+v", marks)
	}
	for _, name := range []string{"a", "b"} {
		if got := of(read()[before:], name); len(got) != 1 || got[0] != "ADDED snapshot" {
			t.Errorf("%s: got %q", name, got)
		}
	}

	// On demand, while the receiver takes nothing: a second one is refused.
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	end := requestSnapshot(t, file, "p")
	eventually(t, wide, "the snapshot begins", func() error {
		if _, body := e.Get("/status"); !strings.Contains(body, `"state": "away"`) {
			return fmt.Errorf("got %s", body)
		}
		return nil
	})
	output, code := runToEnd(t, "snapshot", "--config", file, "--pipeline", "p", "--resource", "cm")
	if code != 1 || !strings.Contains(output, "a snapshot is under way") || !strings.Contains(output, " not delivered; it waits for the sink, which is away since") {
		t.Errorf("a second one: exit code %d and\n%s", code, output)
	}
	newNamespace(t, "snapshots-later") // so that the version of what follows is beyond the sequence with which p came back
	objects.Patch("a", data("2"))
	e.Stop()
	end(1, "begins anew")
	hook.Use(webhooktest.Accept())
	e = startExporter(t, plane(t).KubeconfigFile(), both)
	eventually(t, wide, "the snapshot that begins anew", func() error {
		marks := marksOf(t, hook)
		last := marks[len(marks)-1]
		if len(marks) < 3 || last.Count != 2 || !last.Complete {
			return fmt.Errorf("got %+v", marks)
		}
		return nil
	})
	if got := strings.Join(of(read(), "a"), ", "); !strings.Contains(got, "MODIFIED") || !strings.HasSuffix(got, "ADDED snapshot") {
		t.Errorf("a: got %s", got)
	}

	output, code = runToEnd(t, "snapshot", "--config", file, "--pipeline", "p")
	if code != 0 || !strings.Contains(output, "v1/configmaps in "+namespace+" (source s): 2 sent, complete") {
		t.Errorf("exit code %d and\n%s", code, output)
	}
	// One that is refused for ever holds its end up, and the command says so.
	subject := "/api/v1/namespaces/" + namespace + "/configmaps/a"
	var refused atomic.Int32
	hook.Use(func(r *webhooktest.Request) webhooktest.Answer {
		if strings.Contains(string(r.Body), subject+`"`) {
			refused.Add(1)
			return webhooktest.Answer{Status: http.StatusForbidden}
		}
		return webhooktest.Accept()(r)
	})
	waits := "2 sent, 0 left, 1 not delivered; it waits for " + subject + ", which waits for its own first record, which failed"
	end = requestSnapshot(t, file, "p")
	eventually(t, wide, "it is refused", func() error {
		if refused.Load() == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	changes := 10
	eventually(t, wide, "what it waits for", func() error {
		changes++
		objects.Patch("b", data(strconv.Itoa(changes))) // that gets through: it is not the sink that fails
		output, code = runToEnd(t, "snapshot", "--config", file, "--pipeline", "p")
		if code != 1 || !strings.Contains(output, waits) || !strings.Contains(output, "403") {
			return fmt.Errorf("exit code %d and\n%s", code, output)
		}
		return nil
	})
	hook.Use(webhooktest.Accept())
	end(0, "2 sent, complete")
	// Without records that died it is not complete, and its mark names them.
	hook.Use(webhooktest.WhenID(func(id string) bool { return !strings.HasSuffix(id, "/SNAPSHOT") },
		webhooktest.Answer{Status: http.StatusRequestEntityTooLarge}, webhooktest.Accept()))
	output, code = runToEnd(t, "snapshot", "--config", file, "--pipeline", "p")
	if code != 1 || !strings.Contains(output, "2 sent, not complete") {
		t.Errorf("with dead letters: exit code %d and\n%s", code, output)
	}
	if marks := marksOf(t, hook); len(marks[len(marks)-1].Except) != 2 {
		t.Errorf("the mark does not name the two that died: %+v", marks)
	}
	if output, code = runToEnd(t, "snapshot", "--config", file, "--pipeline", "p", "--resource", "v1/pods"); code != 1 || !strings.Contains(output, "takes no such resource") {
		t.Errorf("of another resource: exit code %d and\n%s", code, output)
	}
	e.Stop()
	if output, code = runToEnd(t, "snapshot", "--config", file, "--pipeline", "p"); code != 1 || !strings.Contains(output, "no kubeferry runs") {
		t.Errorf("without kubeferry: exit code %d and\n%s", code, output)
	}
}

// TestExtendedSnapshotsAreBroken kills kubeferry in its first snapshot and in one on demand, and takes the CRD away in another. After a kill
// a snapshot begins anew, and is complete; without its resource it ends, and is not.
func TestExtendedSnapshotsAreBroken(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	if err := load.InstallWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, "broken")
	objects := objectsIn(t, config, load.Widgets().GVR, namespace)
	for _, name := range []string{"a", "b", "c"} {
		objects.Create(name, map[string]any{"spec": map[string]any{"size": 1}})
	}
	hook := webhooktest.Start(t)
	text := fmt.Sprintf("stateDir: %q\nshutdown: {grace: 1s}\n", t.TempDir()) +
		hookConfig("[example.com/v1/widgets]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	file := writeConfig(t, t.TempDir(), text)
	// begun waits for records of the snapshot, which the receiver does not take.
	begun := func(e *exporter) {
		t.Helper()
		eventually(t, wide, "a snapshot begins", func() error {
			if _, body := e.Get("/status"); !strings.Contains(body, `"waiting": 3`) {
				return fmt.Errorf("got %s", body)
			}
			return nil
		})
	}
	complete := func(than int) {
		t.Helper()
		eventually(t, wide, "a complete snapshot", func() error {
			marks := marksOf(t, hook)
			if len(marks) < than+1 {
				return fmt.Errorf("%d marks", len(marks))
			}
			last := marks[len(marks)-1]
			if last.Count != 3 || !last.Complete {
				return fmt.Errorf("got %+v", marks)
			}
			return nil
		})
	}
	snapshot := func() (wait func(want string)) {
		ended := make(chan string, 1)
		go func() {
			defer close(ended)
			output, code := runToEnd(t, "snapshot", "--config", file, "--pipeline", "p")
			ended <- fmt.Sprintf("exit code %d and\n%s", code, output)
		}()
		return func(want string) {
			t.Helper()
			if got := <-ended; !strings.HasPrefix(got, "exit code 1") || !strings.Contains(got, want) {
				t.Errorf("got %s, want %q", got, want)
			}
		}
	}
	start := func() *exporter {
		hook.Use(webhooktest.Accept())
		return startExporter(t, plane(t).KubeconfigFile(), text)
	}

	down := webhooktest.Status(http.StatusServiceUnavailable)
	hook.Use(down)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	begun(e)
	e.Kill()
	e = start()
	complete(0)
	e.WaitReady()

	before := len(marksOf(t, hook))
	hook.Use(down)
	wait := snapshot()
	begun(e)
	e.Kill()
	wait("begins anew") // else the command may find the next run
	e = start()
	complete(before)
	e.WaitReady()

	hook.Use(down)
	wait = snapshot()
	begun(e)
	if err := load.RemoveWidgets(t.Context(), config); err != nil {
		t.Fatal(err)
	}
	wait("not complete")
	hook.Use(webhooktest.Accept())
	read := hookReader(t, hook, cloudEvents)
	eventually(t, wide, "the objects are gone", func() error {
		for _, name := range []string{"a", "b", "c"} {
			if got := of(read(), name); len(got) == 0 || !strings.HasPrefix(got[len(got)-1], oracle.Deleted) {
				return fmt.Errorf("%s: got %q", name, got)
			}
		}
		return nil
	})
	e.Stop()
}
