package e2e_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestSecrets plants values in a Secret, in every place that kubectl leaves them, and looks for them in everything that
// leaves the exporter.
func TestSecrets(t *testing.T) {
	t.Parallel()
	config := plane(t).Config()
	namespace := newNamespace(t, "secrets")
	objects := objectsIn(t, config, secrets, namespace)
	const inData, inStringData, inAnnotation, changed = "planted-in-data", "planted-in-stringdata", "planted-in-annotation", "planted-later"
	values := []string{inData, inStringData, inAnnotation, changed}
	for _, value := range values[:4] {
		values = append(values, base64.StdEncoding.EncodeToString([]byte(value)))
	}
	coded := func(value string) string { return base64.StdEncoding.EncodeToString([]byte(value)) }
	manifest := map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{
			"kubectl.kubernetes.io/last-applied-configuration": `{"data":{"a":"` + coded(inAnnotation) + `"},"stringData":{"b":"` + inAnnotation + `"}}`,
			"plain": "kept",
		}},
		"data":       map[string]any{"token": coded(inData)},
		"stringData": map[string]any{"password": inStringData},
	}
	uid := string(objects.Create("taken", manifest).GetUID())
	dead := string(objects.Create("refused", manifest).GetUID())

	redacted, open := webhooktest.Start(t), webhooktest.Start(t)
	redacted.Use(webhooktest.WhenID(func(id string) bool { return strings.Contains(id, dead) },
		webhooktest.Answer{Status: http.StatusBadRequest, Body: "cannot take this"}, webhooktest.Accept()))
	letters := filepath.Join(t.TempDir(), "dead.jsonl")
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/secrets], namespaces: {include: [%s]}}]
pipelines:
  - {name: redacted, sink: redacted, deadLetter: dead}
  - {name: text, sink: out, format: raw}
  - {name: open, sink: open, redactSecrets: false, keepManagedFields: true}
sinks:
  - {name: redacted, webhook: {url: %q}}
  - {name: out, stdout: {}}
  - {name: open, webhook: {url: %q}}
  - {name: dead, file: {path: %q}}
redaction: {key: "0123456789abcdef0123456789abcdef"}
`, namespace, redacted.URL(), open.URL(), letters))
	e.WaitReady()
	objects.Patch("taken", map[string]any{"data": map[string]any{"token": coded(changed)}})
	objects.Patch("taken", map[string]any{"metadata": map[string]any{"labels": map[string]any{"x": "y"}}})
	objects.Delete("taken")
	objects.Delete("refused")
	wait(t, hookReader(t, redacted, cloudEvents), "taken", oracle.Deleted)
	e.WaitSettled(wide)
	e.Stop()

	var bodies []string
	for _, r := range redacted.Requests() {
		bodies = append(bodies, string(r.Body))
	}
	taken := ""
	for name, text := range map[string]string{
		"the log": e.LogText(), "stdout": read(t, e.stdout), "the dead letters": read(t, letters), "the records": strings.Join(bodies, "\n"),
	} {
		for _, value := range values {
			if strings.Contains(text, value) {
				t.Errorf("%s hold %q", name, value)
			}
		}
		if strings.Contains(text, "managedFields") {
			t.Errorf("%s hold managedFields", name)
		}
	}
	if n := len(readLetters(t, letters)); n != 2 {
		t.Errorf("%d dead letters, want 2", n)
	}
	// The digests show a change as one, and nothing else as one.
	var tokens []string
	for _, body := range bodies {
		if strings.Contains(body, uid) {
			taken += body
			_, after, _ := strings.Cut(body, `"token":"`)
			token, _, _ := strings.Cut(after, `"`)
			tokens = append(tokens, token)
		}
	}
	if len(tokens) != 4 || tokens[0] == tokens[1] || tokens[1] != tokens[2] || tokens[2] != tokens[3] || tokens[0] == "" {
		t.Errorf("the digests of the token are %q", tokens)
	}
	if !strings.Contains(taken, `"plain":"kept"`) || !strings.Contains(taken, `"password":"redacted:`) {
		t.Errorf("too much or too little is redacted: %s", taken)
	}

	var whole string
	for _, r := range open.Accepted() {
		whole += string(r.Body)
	}
	for _, want := range []string{coded(inData), coded(inStringData), coded(inAnnotation), coded(changed), "managedFields"} {
		if !strings.Contains(whole, want) {
			t.Errorf("with redactSecrets: false and keepManagedFields: true, %q is missing", want)
		}
	}
	e.WaitLogged(0, "configuration", "redactSecrets")
}

func read(tb testing.TB, file string) string {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}
