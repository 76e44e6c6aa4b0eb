package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestExpandText(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	one, two, crlf := write("one", "text\n"), write("two", "text\n\n"), write("crlf", "text\r\n")
	large := write("large", strings.Repeat("x", maxExpansion+1))
	variables := map[string]string{"A": "1", "_b2": "two", "EMPTY": "", "NESTED": "${A}", "DOLLAR": "$"}

	for _, test := range []struct{ text, want, fault string }{
		{text: "plain", want: "plain"},
		{text: "${A}", want: "1"},
		{text: "x${A}y${_b2}${EMPTY}z", want: "x1ytwoz"},
		{text: "${NESTED}", want: "${A}"},
		{text: "${DOLLAR}{A}", want: "${A}"},
		{text: "$", want: "$"},
		{text: "a$b $1 $$ $$$", want: "a$b $1 $$ $$$"},
		{text: "$${A}", want: "${A}"},
		{text: "$$${A}", want: "$${A}"},
		{text: "$${", want: "${"},
		{text: "${file:" + one + "}", want: "text"},
		{text: "${file:" + two + "}", want: "text\n"},
		{text: "${file:" + crlf + "}", want: "text"},
		{text: "${B}", fault: "the environment variable B is not set"},
		{text: "${A", fault: "without a }"},
		{text: "${}", fault: "neither"},
		{text: "${1A}", fault: "neither"},
		{text: "${A:-x}", fault: "neither"},
		{text: "${file:relative}", fault: "must be absolute"},
		{text: "${file:" + dir + "}", fault: "not a regular file"},
		{text: "${file:" + dir + "/none}", fault: "no such file"},
		{text: "${file:" + large + "}", fault: "larger than 1Mi"},
	} {
		got, _, err := expandText(test.text, func(name string) (string, error) { return lookup(name, fakeEnv(variables)) })
		if test.fault != "" {
			if err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%s: got %q, %v, want a fault with %q", test.text, got, err, test.fault)
			}
		} else if err != nil || got != test.want {
			t.Errorf("%s: got %q, %v, want %q", test.text, got, err, test.want)
		}
	}
}

func TestExpandIntoTypes(t *testing.T) {
	for _, quote := range []string{"", `"`, "'"} {
		value := func(name string) string { return quote + "${" + name + "}" + quote }
		text := fmt.Sprintf(`
cluster: %s
sources: [{name: s, resources: [%s]}]
pipelines:
  - name: p
    sink: out
    filters:
      - types: [%s]
    keepManagedFields: %s
    retry: {attempts: %s, max: %s}
    backlog: {maxBytes: %s}
sinks: [{name: out, webhook: {url: "http://x", headers: {"${KEY}": %s}}}]
`, value("CLUSTER"), value("RESOURCE"), value("TYPE"), value("BOOL"), value("INT"), value("DURATION"), value("SIZE"), value("YAML"))
		if quote == "" { // a plain ${ may not stand in flow style
			text = strings.NewReplacer("[${RESOURCE}]", `["${RESOURCE}"]`, "[${TYPE}]", `["${TYPE}"]`, ": ${INT},", `: "${INT}",`,
				": ${DURATION}}", `: "${DURATION}"}`, ": ${SIZE}}", `: "${SIZE}"}`, ": ${YAML}}}", `: "${YAML}"}}`).Replace(text)
		}
		config, _ := parse(t, text, map[string]string{
			"CLUSTER": "0123", "RESOURCE": "v1/pods", "TYPE": "DELETED", "BOOL": "true", "INT": "3", "DURATION": "1m",
			"SIZE": "1Mi", "YAML": "{a: [b]}\nc: d",
		})
		p := config.Pipelines[0]
		if config.Cluster != "0123" || config.Sources[0].Resources[0].Resource != "pods" || p.Filters[0].Types[0] != "DELETED" ||
			!p.KeepManagedFields || p.Retry.Attempts != 3 || p.Retry.Max != time.Minute || p.Backlog.MaxBytes != 1<<20 {
			t.Errorf("got %+v", config)
		}
		headers := config.Sinks[0].Config.(*fakeWebhook).Headers
		if headers["${KEY}"] != "{a: [b]}\nc: d" {
			t.Errorf("keys must not expand, values must not be read as YAML: got %q", headers)
		}
	}
}

func TestAliasOfExpansion(t *testing.T) {
	config, _ := parse(t, `cluster: &c ${C}
sources: [{name: s, resources: [v1/pods], labelSelector: *c}]
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`, map[string]string{"C": "x"})
	if config.Cluster != "x" || config.Sources[0].LabelSelector != "x" {
		t.Errorf("got %+v", config)
	}
}

func TestScrub(t *testing.T) {
	secrets := []secret{{`pa"ss`, "${A}"}, {"ab", "${B}"}}
	for message, want := range map[string]string{
		`parse pa"ss: bad`:          `parse ${A}: bad`,
		`parse "pa\"ss": bad`:       `parse "${A}": bad`,
		`bad "ss" in it`:            `bad "…" in it`,
		`able "ab" 'ab' absolutely`: `able "${B}" '${B}' absolutely`,
		`nothing`:                   `nothing`,
	} {
		if got := scrub(message, secrets); got != want {
			t.Errorf("scrub(%s): got %s, want %s", message, got, want)
		}
	}
}
