package e2e_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedValuesInErrors has every filter, transform and receiver fail on an object, in ways in which libraries quote the values that they
// fail on, and looks for these in what others than the readers of the stream see: the log, the admin port, the reasons in dead letters,
// and what the commands print.
func TestExtendedValuesInErrors(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "leaks")
	echo := func(status int) *webhooktest.Receiver {
		hook := webhooktest.Start(t)
		hook.Use(func(r *webhooktest.Request) webhooktest.Answer {
			_, value, _ := strings.Cut(string(r.Body), `"value":"`)
			value, _, _ = strings.Cut(value, `"`)
			return webhooktest.Answer{Status: status, Body: fmt.Sprintf("field data.value: %q is not valid", value)}
		})
		return hook
	}
	unsolicited := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = conn.Write(append([]byte("HTTP/1.1 204 No Content\r\n\r\n"), body...)) // net/http writes to the log what follows a 204
		_, _ = io.Copy(io.Discard, conn)
	}))
	defer unsolicited.Close()
	refusing, failing := echo(http.StatusUnprocessableEntity), echo(http.StatusServiceUnavailable)
	failures := []string{
		`filters: [{expr: 'int(object.data.value) > 0', onError: deadLetter}]`,
		`filters: [{expr: 'timestamp(object.data.value) > timestamp("2020-01-01T00:00:00Z")', onError: deadLetter}]`,
		`filters: [{expr: 'object.data[object.data.value] == ""', onError: deadLetter}]`,
		`filters: [{expr: 'object.data.value.matches(object.data.pattern)', onError: deadLetter}]`,
		`filters: [{expr: 'quantity(object.data.value) == quantity("1")', onError: deadLetter}]`,
		`transforms: [{set: {metadata.labels.x: 'object.data[object.data.value]'}}]`,
		`transforms: [{set: {metadata.labels.x: 'string(duration(object.data.value))'}}]`,
		`transforms: [{set: {data.value.x: '"y"'}}]`,
		`transforms: [{rename: {data.value.x: data.y}}, {set: {metadata.labels.x: 'object.data.y'}}]`,
	}
	var pipelines strings.Builder
	for n, failure := range failures {
		fmt.Fprintf(&pipelines, "  - {name: p%d, sink: out, deadLetter: dead, %s}\n", n, failure)
	}
	letters := filepath.Join(t.TempDir(), "dead.jsonl")
	text := fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, snapshot: never}]
pipelines:
  - {name: refused, sink: refusing, deadLetter: dead}
  - {name: kept, sink: refusing} # its dead letters are in the state directory
  - {name: waits, sink: failing}
  - {name: unsolicited, sink: unsolicited}
%ssinks:
  - {name: refusing, webhook: {url: %q}}
  - {name: failing, webhook: {url: %q}}
  - {name: unsolicited, webhook: {url: %q}}
  - {name: out, stdout: {}}
  - {name: dead, file: {path: %q}}
`, filepath.Join(t.TempDir(), "state"), namespace, &pipelines, refusing.URL(), failing.URL(), unsolicited.URL, letters)
	file := writeConfig(t, t.TempDir(), text)
	e := runExporter(t, plane(t).KubeconfigFile(), file)
	e.leaves = true
	e.WaitReady()
	const value, pattern = "planted-value-of-the-object", "planted-pattern(of-it"
	objectsIn(t, config, configMaps, namespace).Create("a", map[string]any{"data": map[string]any{"value": value, "pattern": pattern}})
	dead := len(failures) + 2
	eventually(t, wide, "all fail", func() error {
		m := e.Metrics()
		if n := m.sum("kubeferry_records_dead_total"); n < float64(dead) {
			return fmt.Errorf("%v records died of %d: %v", n, dead, e.Status().Pipelines)
		}
		if m.sum("kubeferry_sink_errors_total", "pipeline=waits") == 0 {
			return errors.New("nothing waits")
		}
		if m.sum("kubeferry_records_delivered_total", "pipeline=unsolicited") == 0 {
			return errors.New("nothing is delivered")
		}
		return nil
	})
	seen := map[string]string{"the log": e.LogText()}
	for _, path := range []string{"/status", "/metrics", "/readyz", "/healthz", "/"} {
		_, seen[path] = e.Get(path)
	}
	for n, l := range readLetters(t, letters) {
		seen[fmt.Sprint("the reason of dead letter ", n)] = l.Error
	}
	if n := len(readLetters(t, letters)); n != dead-1 {
		t.Errorf("%d dead letters, want %d", n, dead-1)
	}
	seen["kubeferry replay"], _ = runToEnd(t, "replay", "-c", file)
	for name, text := range seen {
		for _, planted := range []string{value, pattern} {
			if before, after, found := strings.Cut(text, planted); found {
				t.Errorf("%s: a value follows %q, before %.100q", name, before[max(0, len(before)-300):], after)
			}
		}
	}
	if !strings.Contains(seen["kubeferry replay"], "422") || !strings.Contains(seen["/status"], "503") {
		t.Errorf("an error is missing:\n%s\n%s", seen["kubeferry replay"], seen["/status"])
	}
}
