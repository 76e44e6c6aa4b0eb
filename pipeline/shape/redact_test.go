package shape

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

var secrets = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}

func coded(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }

// secretOf makes a Secret of plain values.
func secretOf(t testing.TB, namespace, name string, values, annotations map[string]string) *delta.Object {
	t.Helper()
	data := map[string]string{}
	for key, value := range values {
		data[key] = coded(value)
	}
	raw, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Secret", "data": data,
		"metadata": map[string]any{"namespace": namespace, "name": name, "uid": "u", "resourceVersion": "1", "annotations": annotations},
	})
	if err != nil {
		t.Fatal(err)
	}
	object, err := delta.NewObject(raw)
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// redactedSecret returns the digests, by key, and the annotations.
func redactedSecret(t testing.TB, r *Redactor, object *delta.Object) (data, annotations map[string]string) {
	t.Helper()
	redacted, err := r.Secret(object)
	if err != nil {
		t.Fatal(err)
	}
	var decoded struct {
		Data     map[string]string
		Metadata struct{ Annotations map[string]string }
	}
	if err := json.Unmarshal(redacted.JSON(), &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded.Data, decoded.Metadata.Annotations
}

// TestDigestsAreBound: the same value has the same digest in the same place only.
func TestDigestsAreBound(t *testing.T) {
	values := map[string]string{"a": "hunter2", "b": "hunter2"}
	annotations := map[string]string{"c": "hunter2"}
	r := NewRedactor([]byte("key"), "c")
	data, copied := redactedSecret(t, r, secretOf(t, "shop", "one", values, annotations))
	again, _ := redactedSecret(t, NewRedactor([]byte("key"), "c"), secretOf(t, "shop", "one", values, nil))
	if !maps.Equal(data, again) {
		t.Errorf("got %v and %v", data, again)
	}
	places := []string{data["a"], data["b"], copied["c"]}
	for _, other := range []struct {
		redactor        *Redactor
		namespace, name string
	}{
		{r, "shop", "two"},
		{r, "team", "one"},
		{r, "sho", "pone"},
		{NewRedactor([]byte("key"), "d"), "shop", "one"},
		{NewRedactor([]byte("other"), "c"), "shop", "one"},
	} {
		data, _ := redactedSecret(t, other.redactor, secretOf(t, other.namespace, other.name, values, nil))
		places = append(places, data["a"], data["b"])
	}
	for _, at := range []delta.Ref{
		{Resource: pods, Namespace: "shop", Name: "one"},
		{Resource: schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "secrets"}, Namespace: "shop", Name: "one"},
	} {
		digest, err := r.value(at, fieldpath.Of("data", "a"), coded("hunter2"))
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, digest.(string))
	}
	slices.Sort(places)
	if distinct := len(slices.Compact(slices.Clone(places))); distinct != len(places) || !isDigest(places[0]) {
		t.Errorf("%d digests of %d places: %q", distinct, len(places), places)
	}
	// The version of the API is none of the place: the same object is watched in another one after an upgrade.
	v1, _ := r.value(delta.Ref{Resource: pods, Name: "a"}, fieldpath.Of("a"), "x")
	v2, _ := r.value(delta.Ref{Resource: schema.GroupVersionResource{Version: "v2", Resource: "pods"}, Name: "a"}, fieldpath.Of("a"), "x")
	if v1 != v2 {
		t.Errorf("got %v and %v in two versions of a resource", v1, v2)
	}
}

// TestRetentionPolicyNamesTheDigests: what was retained with other digests, those of commit 624abff among them, is dropped.
func TestRetentionPolicyNamesTheDigests(t *testing.T) {
	policy := func(r *Redactor) string {
		p := start(t, func(o *Options) { o.Diff, o.Redactor = DiffJSONPatch, r })
		var retention Retention
		retention.Add(p.Shaper)
		return retention.Policy()
	}
	same := policy(NewRedactor([]byte("key"), "c"))
	if same == "redacted" || same != policy(NewRedactor([]byte("key"), "c")) || same == policy(NewRedactor([]byte("other"), "c")) ||
		strings.Contains(same, "key") {
		t.Errorf("got %q", same)
	}
	if got := policy(nil); got != "unredacted" { // holds no digests
		t.Errorf("got %q without redaction", got)
	}
}

// TestCopiesInAnnotations: whatever a tool puts into an annotation of a Secret is redacted.
func TestCopiesInAnnotations(t *testing.T) {
	const key = "-----BEGIN KEY-----\nMIIB\"\\+/=\n-----END KEY-----\n"
	values := map[string]string{"password": "hunter2", "key": key, "short": "abc", "emptied": "", "unicode": "pässwörd"}
	const link = `{"url":"pg://a:p%40ss@db"}`
	values["emoji"], values["blank"], values["link"], values["plus"] = "sm😀ile", "correct horse", link, "a+b1"
	quoted := func(text string) string {
		raw, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	indented := strings.ReplaceAll(key, "\n", "\n    ")
	copied := `{"kind":"Secret","data":{"old":"b2xk"}}`
	for name, text := range map[string]string{
		"value":                    "hunter2",
		"value in a text":          "the password is hunter2!",
		"value in base64":          coded("hunter2"),
		"base64 without padding":   strings.TrimRight(coded("hunter2"), "="),
		"base64 behind a path":     "/keys/" + coded("hunter2"),
		"within base64":            coded("user=admin;password=hunter2;"),
		"base64 of base64":         coded(coded("hunter2")),
		"base64 for URLs":          base64.RawURLEncoding.EncodeToString([]byte("???>>>" + key)),
		"base64 in lines":          coded("user=admin;password=hun")[:20] + "\n  " + coded("user=admin;password=hunter2;")[20:],
		"in JSON":                  `{"user":"admin","password":"hunter2"}`,
		"escaped":                  quoted(key),
		"escaped twice":            quoted(quoted(key)),
		"escaped to ASCII":         `"p\u00e4ssw\u00f6rd"`,
		"escaped to UTF-16":        `"sm\ud83d\ude00ile"`,
		"with escapes of its own":  `{"c":` + quoted(link) + `}`,
		"in a query":               "https://example.com/?p=" + url.QueryEscape("correct horse"),
		"its base64":               coded(`{"c":` + quoted(link) + `}`),
		"a short one with +":       "pin a+b1",
		"base64 of an escaped one": coded(`{"tls.key":` + quoted(key) + `}`),
		"in a URL":                 "postgres://admin:" + url.QueryEscape("pässwörd") + "@db",
		"indented":                 "key: |\n    " + indented,
		"copy":                     copied,
		"copy in a text":           "was: " + copied + "; now another",
		"copy with spaces":         `{ "data" : {}}`,
		"copy of stringData":       `[{"stringData":{"a":"b"}}]`,
		"copy in a string":         quoted(copied),
		"copy in base64":           coded(copied),
		"copy cut short":           copied[:30],
		"copy in YAML":             "kind: Secret\ndata:\n  old: b2xk\n",
		"copy as Go prints it":     "map[data:map[old:b2xk] kind:Secret]",
		"compressed copy":          "H4sIAAAAAAAA/6pWSkksSVSyqlbKz0lRsqqurQUEAAD//w==",
	} {
		t.Run(name, func(t *testing.T) {
			_, annotations := redactedSecret(t, NewRedactor([]byte("key"), "c"), secretOf(t, "shop", "one", values, map[string]string{"a": text}))
			if !isDigest(annotations["a"]) {
				t.Errorf("%q is sent", text)
			}
		})
	}
}

// TestHarmlessAnnotations: what the documentation lists is sent as it is, and nothing else.
func TestHarmlessAnnotations(t *testing.T) {
	page, err := os.ReadFile("../../docs/transforms.md")
	if err != nil {
		t.Fatal(err)
	}
	digest := DigestPrefix + strings.Repeat("0", 32)
	annotations := map[string]string{"kept": digest, "empty": "", "note": "some text", "cert-manager.io/other": "x", "helm.sh/hook": "x"}
	for _, name := range harmlessAnnotations {
		annotations[name] = "as written"
		if !bytes.Contains(page, []byte("`"+name+"`")) {
			t.Errorf("docs/transforms.md does not list %s", name)
		}
	}
	_, got := redactedSecret(t, NewRedactor([]byte("key"), "c"), secretOf(t, "shop", "one", map[string]string{"a": "as written"}, annotations))
	for name, text := range got {
		if harmless := slices.Contains(harmlessAnnotations, name) || name == "kept"; (text == annotations[name]) != harmless || !harmless && !isDigest(text) {
			t.Errorf("%s became %q", name, text)
		}
	}
}

// TestOddSecrets: what no API server sends leaves no value in the clear.
func TestOddSecrets(t *testing.T) {
	for _, fields := range []string{
		`"data":"planted"`, `"data":["planted"]`, `"data":{"a":["planted"]}`, `"data":{"a":{"b":"planted"}}`, `"data":{"a":"planted?"}`,
		`"stringData":{"a":"planted"},"data":null`,
		`"metadata":{"name":"a","annotations":{"a":["planted"]}}`, `"metadata":{"name":"a","annotations":["planted"]}`,
		`"metadata":{"name":"a","annotations":"planted"}`, `"metadata":{"name":"a","annotations":null},"data":{"a":"planted"}`,
		`"stringData":{"a":"planted"},"metadata":{"name":"a","annotations":{"a":"planted","b":1}}`,
	} {
		object, err := delta.NewObject([]byte(`{"apiVersion":"v1","kind":"Secret",` + fields + `}`))
		if err != nil {
			continue // it is no object
		}
		redacted, err := NewRedactor([]byte("key"), "c").Secret(object)
		if err != nil {
			if strings.Contains(err.Error(), "planted") {
				t.Errorf("%s: %v", fields, err)
			}
			continue
		}
		if strings.Contains(string(redacted.JSON()), "planted") {
			t.Errorf("%s became %s", fields, redacted.JSON())
		}
	}
}

// TestNoValueLeaves: whatever tools do with the values of a Secret in its annotations, none is in what is sent: neither in
// the object nor in the previous version nor in a difference.
func TestNoValueLeaves(t *testing.T) {
	escaped := func(text string) string {
		raw, _ := json.Marshal(text)
		return string(raw)
	}
	forms := map[string]func(string) string{
		"text":    func(text string) string { return "a " + text + " z" },
		"base64":  coded,
		"URL":     func(text string) string { return "/" + base64.RawURLEncoding.EncodeToString([]byte(text)) },
		"escaped": escaped,
		"JSON":    func(text string) string { return `{"user":"admin","password":` + escaped(text) + `}` },
		"copy":    func(text string) string { return `{"data":{"k":` + escaped(coded(text)) + `}}` },
		"YAML":    func(text string) string { return "kind: Secret\nstringData:\n  k: " + text },
	}
	names := slices.Sorted(maps.Keys(forms))
	var shapers []*shaped
	for _, diff := range []Diff{DiffOldObject, DiffJSONPatch, DiffMergePatch} {
		shapers = append(shapers, start(t, func(o *Options) {
			o.Diff, o.Redactor = diff, NewRedactor([]byte("key"), "c")
		}))
	}
	rapid.Check(t, func(rt *rapid.T) {
		planted := map[string]bool{}
		draw := func(label string) *delta.Object {
			values, annotations := map[string]string{}, map[string]string{}
			for n := range rapid.IntRange(1, 4).Draw(rt, label) {
				// Neither the rest of the object nor a digest has anything like it.
				value := "zqzq" + rapid.StringMatching(`[qzQZ"\\\né< ]{0,12}`).Draw(rt, "value")
				values[fmt.Sprint("k", n)] = value
				for _, form := range []string{value, coded(value), strings.Trim(escaped(value), `"`)} {
					planted[form] = true
				}
				if rapid.Bool().Draw(rt, "copied") {
					text := value
					for range rapid.IntRange(0, 2).Draw(rt, "depth") {
						text = forms[rapid.SampledFrom(names).Draw(rt, "form")](text)
					}
					annotations[fmt.Sprint("a", n)] = text
				}
			}
			return secretOf(t, "shop", "one", values, annotations)
		}
		d := &delta.Delta{Type: delta.Modified, Resource: secrets, Object: draw("values"), Old: draw("values before")}
		p := rapid.SampledFrom(shapers).Draw(rt, "shaper")
		if rapid.Bool().Draw(rt, "retained") {
			var retention Retention
			retention.Add(p.Shaper)
			d.Old = retention.Retain(secrets, d.Old)
		}
		e := p.Explain(t.Context(), d, true, nil)
		if e.DeadLetter != nil || !strings.Contains(string(e.Record.Body), DigestPrefix) {
			rt.Fatalf("sent %s, %v", e.Record.Body, e.DeadLetter)
		}
		sent := fmt.Sprint(string(e.Record.Body), e.Record.Headers, e.Versions)
		for form := range planted {
			if strings.Contains(sent, form) {
				rt.Fatalf("%q is in %s", form, sent)
			}
		}
	})
}

// The pipelines of a source redact a Secret once: one of 120,000 values takes half a second, and the Secrets of others wait meanwhile.
func TestSecretIsRedactedOnce(t *testing.T) {
	object := secretOf(t, "ns", "s", map[string]string{"a": "value"}, nil)
	redact := func(r *Redactor) *delta.Object {
		t.Helper()
		redacted, err := clean(secrets, object, false, r)
		if err != nil {
			t.Fatal(err)
		}
		return redacted
	}
	one, other := NewRedactor([]byte("key"), "c"), NewRedactor([]byte("another"), "c")
	first := redact(one)
	if redact(one) != first {
		t.Error("it is redacted again")
	}
	if bytes.Equal(redact(other).JSON(), first.JSON()) {
		t.Error("a redactor gets what another one made")
	}
	if plain := redact(nil); plain == object || &plain.JSON()[0] != &object.JSON()[0] {
		t.Errorf("without a redactor it has what is cached, or another copy of the JSON: %s", plain.JSON())
	}
}
