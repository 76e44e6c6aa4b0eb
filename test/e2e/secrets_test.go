package e2e_test

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/s2"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestSecrets plants values in a Secret, in every place that kubectl and other tools leave them, and looks for them in everything that
// leaves kubeferry.
func TestSecrets(t *testing.T) {
	beside(t)
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
			"example.com/copy":          `v1 {"kind":"Secret","data":{"a":"` + coded(inAnnotation) + `"}}`,
			"example.com/password":      "it is " + inStringData,
			"example.com/connection":    coded("password=" + inStringData + ";"), // its value does not change
			"meta.helm.sh/release-name": "kept",
		}},
		"data":       map[string]any{"token": coded(inData)},
		"stringData": map[string]any{"password": inStringData},
	}
	uid := string(objects.Create("taken", manifest).GetUID())
	dead := string(objects.Create("refused", manifest).GetUID())
	objects.Create("stays", manifest)

	redacted, open := webhooktest.Start(t), webhooktest.Start(t)
	formats, gone := webhooktest.Start(t), webhooktest.Start(t)
	gone.Use(webhooktest.Always(webhooktest.Answer{Status: http.StatusServiceUnavailable}))
	stateDir := t.TempDir()
	redacted.Use(webhooktest.WhenID(func(id string) bool { return strings.Contains(id, dead) },
		webhooktest.Answer{Status: http.StatusBadRequest, Body: "cannot take this"}, webhooktest.Accept()))
	letters := filepath.Join(t.TempDir(), "dead.jsonl")
	e := startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources: [{name: s, resources: [v1/secrets], namespaces: {include: [%[2]s]}}, {name: unredacted, resources: [v1/secrets], namespaces: {include: [%[2]s]}}]
pipelines:
  - {name: redacted, sources: [s], sink: redacted, deadLetter: dead}
  - {name: text, sources: [s], sink: out, format: raw}
  - {name: old, sources: [s], sink: formats, diff: oldObject}
  - {name: patch, sources: [s], sink: formats, format: json, diff: jsonPatch}
  - {name: merge, sources: [s], sink: formats, format: cloudevents-binary, diff: mergePatch}
  - {name: knative, sources: [s], sink: formats, profile: knative}
  - {name: waiting, sources: [s], sink: gone, diff: jsonPatch}
  - name: failing # on every object, with its values in the expression's hands
    sources: [s]
    filters: [{expr: 'object.data.token + object.data.absent != ""', onError: deadLetter}]
    transforms: [{set: {metadata.labels.x: 'object.data.token.size() > 0 ? object.data.absent : "x"'}}]
    sink: out
    deadLetter: dead
  - {name: open, sources: [unredacted], sink: open, redactSecrets: false, keepManagedFields: true}
sinks:
  - {name: redacted, webhook: {url: %q}}
  - {name: out, stdout: {}}
  - {name: open, webhook: {url: %q}}
  - {name: formats, webhook: {url: %q}}
  - {name: gone, webhook: {url: %q}}
  - {name: dead, file: {path: %q}}
redaction: {key: "0123456789abcdef0123456789abcdef"}
`, stateDir, namespace, redacted.URL(), open.URL(), formats.URL(), gone.URL(), letters))
	e.leaves = true
	e.WaitReady()
	objects.Patch("taken", map[string]any{"data": map[string]any{"token": coded(changed)}})
	objects.Patch("taken", map[string]any{"metadata": map[string]any{"labels": map[string]any{"x": "y"}}})
	objects.Delete("taken")
	objects.Delete("refused")
	wait(t, hookReader(t, redacted, cloudEvents), "taken", oracle.Deleted)
	eventually(t, wide, "all but the pipeline whose sink is gone are settled", func() error {
		m := e.Metrics()
		if waiting := m.sum("kubeferry_backlog_deltas") - m.sum("kubeferry_backlog_deltas", "pipeline=waiting"); waiting > 0 {
			return fmt.Errorf("%v deltas wait", waiting)
		}
		return nil
	})
	// A commit after another: all that came before is in the state directory.
	logBytes := func() float64 { return e.Metrics().sum("kubeferry_log_bytes", "pipeline=waiting") }
	for n := range 2 {
		before := logBytes()
		objects.Patch("stays", map[string]any{"metadata": map[string]any{"labels": map[string]any{"n": fmt.Sprint(n)}}})
		eventually(t, wide, "a commit", func() error {
			if logBytes() <= before {
				return errors.New("the log does not grow")
			}
			return nil
		})
	}
	e.checkLedgers()
	e.dump() // as one does with a program that hangs; nothing secret may be in what it leaves

	var bodies, others []string
	for _, r := range redacted.Requests() {
		bodies = append(bodies, string(r.Body))
	}
	for _, r := range formats.Requests() {
		others = append(others, fmt.Sprint(r.Header), string(r.Body))
	}
	if all := strings.Join(others, ""); !strings.Contains(all, `"patch":[`) || !strings.Contains(all, `"oldObject":{`) || !strings.Contains(all, `"patch":{`) {
		t.Error("some difference was not sent")
	}
	taken := ""
	for name, text := range map[string]string{
		"the log": e.LogText(), "stdout": read(t, e.stdout), "the dead letters": read(t, letters), "the records": strings.Join(bodies, "\n"),
		"the records in other formats": strings.Join(others, "\n"), "the state directory": unpacked(t, stateDir),
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
	if n := len(readLetters(t, letters)); n <= 2 { // two records that were refused, and those that no filter could judge
		t.Errorf("%d dead letters, want more than 2", n)
	}
	// The digests show a change as one, and nothing else as one. The same value has another one in another Secret.
	var tokens, elsewhere []string
	for _, body := range bodies {
		_, after, _ := strings.Cut(body, `"token":"`)
		token, _, _ := strings.Cut(after, `"`)
		if strings.Contains(body, uid) {
			taken += body
			tokens = append(tokens, token)
		} else {
			elsewhere = append(elsewhere, token)
		}
	}
	if len(tokens) != 4 || tokens[0] == tokens[1] || tokens[1] != tokens[2] || tokens[2] != tokens[3] || tokens[0] == "" {
		t.Errorf("the digests of the token are %q", tokens)
	} else if len(elsewhere) == 0 || slices.Contains(elsewhere, tokens[0]) {
		t.Errorf("%q of the Secret are as those of others, %q", tokens, elsewhere)
	}
	if !strings.Contains(taken, `"meta.helm.sh/release-name":"kept"`) || !strings.Contains(taken, `"password":"redacted:`) {
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

// TestExtendedTenantCopiesADigest has a tenant who reads the whole stream try values out: as the same Secret in his own namespace, in other
// places of it, and with the digests that he has seen in place of values. No digest that he gets is one of another's Secret.
func TestExtendedTenantCopiesADigest(t *testing.T) {
	beside(t)
	const right = "planted-and-guessed"
	config := plane(t).Config()
	good, bad := newNamespace(t, "good"), newNamespace(t, "bad")
	hook := webhooktest.Start(t)
	startExporter(t, plane(t).KubeconfigFile(), fmt.Sprintf(`
sources: [{name: s, resources: [v1/secrets, v1/configmaps], namespaces: {include: [%s, %s]}}]
pipelines: [{name: p, sink: hook, diff: jsonPatch}]
sinks: [{name: hook, webhook: {url: %q}}]
redaction: {key: "0123456789abcdef0123456789abcdef"}
`, good, bad, hook.URL())).WaitReady()
	digest := regexp.MustCompile(`redacted:[^"\\]+`)
	// digestsOf returns those in the records of a Secret, once there are as many records.
	digestsOf := func(uid string, records int) (digests []string) {
		t.Helper()
		eventually(t, wide, "the records of "+uid, func() error {
			n := 0
			digests = nil
			for _, r := range hook.Accepted() {
				if body := string(r.Body); strings.Contains(body, uid) {
					n++
					digests = append(digests, digest.FindAllString(body, -1)...)
				}
			}
			if n < records {
				return fmt.Errorf("%d of %d", n, records)
			}
			return nil
		})
		return digests
	}
	manifest := func(password, annotation string) map[string]any {
		return map[string]any{
			"metadata":   map[string]any{"annotations": map[string]any{"example.com/copy": annotation}},
			"stringData": map[string]any{"password": password},
		}
	}
	theirs := digestsOf(string(objectsIn(t, config, secrets, good).Create("db", manifest(right, right)).GetUID()), 1)
	if len(theirs) != 2 || theirs[0] == theirs[1] {
		t.Fatalf("a value has in two places the digests %q", theirs)
	}
	mine := objectsIn(t, config, secrets, bad)
	var learned []string
	for n, guess := range append([]string{right}, theirs...) {
		name, annotation := []string{"db", "db-1", "db-2"}[n], "none"
		if n == 0 { // the same Secret; elsewhere what looks like a digest would stay in an annotation as the tenant wrote it
			annotation = guess
		}
		uid := string(mine.Create(name, manifest(guess, annotation)).GetUID())
		mine.Patch(name, map[string]any{"stringData": map[string]any{"password": "another", "other": guess}})
		mine.Patch(name, map[string]any{"stringData": map[string]any{"password": guess}})
		mine.Delete(name)
		learned = append(learned, digestsOf(uid, 4)...)
	}
	if len(learned) < 3*(1+2+2+1) {
		t.Errorf("got the digests %q", learned)
	}
	for _, one := range theirs {
		if slices.Contains(learned, one) {
			t.Errorf("%q is a digest of the tenant's too: his guess shows as right, or a digest as a value", one)
		}
	}
}

// unpacked is the text of everything in a state directory but the redaction key, compressed or not: what waits and what is
// known of its watches that redact.
func unpacked(tb testing.TB, dir string) string {
	tb.Helper()
	store, err := checkpoint.Open(dir, func(message string, err error) { tb.Error(message, err) })
	if err != nil {
		tb.Fatal(err)
	}
	defer func() {
		if err := store.Close(); err != nil {
			tb.Error(err)
		}
	}()
	var text strings.Builder
	for pipeline := range store.Logs() {
		entries := readLog(tb, store, pipeline)
		if pipeline == "open" {
			continue
		}
		for _, e := range entries {
			if e.Delta != nil {
				text.Write(e.Delta.Object.JSON())
				fmt.Fprintf(&text, "%+v", e.Delta.Difference)
			}
		}
	}
	if text.Len() == 0 {
		tb.Error("nothing waits in the state directory")
	}
	kept := 0
	err = store.Watches(func(id string, meta []byte) error {
		text.Write(meta)
		return store.Known(id, func(k delta.Known) {
			packed, err := store.Previous(id, k.Namespace, k.Name)
			if err != nil {
				tb.Error(err)
			}
			if previous, err := s2.Decode(nil, packed); k.Retained && err == nil {
				text.Write(previous)
				kept++
			}
		})
	})
	if err != nil || kept == 0 {
		tb.Errorf("%d objects are kept, %v", kept, err)
	}
	return text.String()
}

func read(tb testing.TB, file string) string {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}
