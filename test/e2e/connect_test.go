package e2e_test

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestValidateConnect runs the command against real servers: what each resource, right and sink is like is in its line, and no
// sink gets a record.
func TestValidateConnect(t *testing.T) {
	beside(t)
	binary := raceBinary(t)
	good, denying, plain := webhooktest.Start(t), webhooktest.Start(t), webhooktest.Start(t)
	denying.Use(webhooktest.Status(http.StatusUnauthorized))
	plain.Use(webhooktest.Status(http.StatusMethodNotAllowed))
	secure := webhooktest.StartTLS(t)
	bus := natstest.Start(t, nil)
	bus.CreateStream(t.Context(), "K8S", "k8s.>")
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	const token = "token-0123456789abcdef"
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	namespace := newNamespace(t, "connect")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantOne(t, plane(t).Config(), namespace, "", "configmaps")
	file := writeConfig(t, dir, fmt.Sprintf(`
sources: [{name: all, resources: [v1/configmaps, v1/secrets, v1/secret], namespaces: {include: [%[9]s]}}]
pipelines: [{name: p, sink: good}]
sinks:
  - {name: good, webhook: {url: %[1]q, insecureCredentials: true, auth: {bearerTokenFile: %[2]q}}}
  - {name: denying, webhook: {url: %[3]q, insecureCredentials: true, auth: {bearerTokenFile: %[2]q}}}
  - {name: plain, webhook: {url: %[4]q}}
  - {name: stranger, webhook: {url: %[5]q}}
  - {name: bus, nats: {urls: [%[6]q], subject: "k8s.{resource}.{name}", stream: {name: K8S}}}
  - {name: lost, nats: {urls: [%[6]q], subject: "k8s.{resource}.{name}", stream: {name: OTHER}}}
  - {name: away, kafka: {brokers: [%[7]q], topic: k8s, timeout: 2s}}
  - {name: file, file: {path: %[8]q}}
  - {name: nowhere, file: {path: /no/such/directory/f}}
  - {name: out, stdout: {}}
`, good.URL(), tokenFile, denying.URL(), plain.URL(), secure.URL(), bus.URL(), freeport.Addr(port), filepath.Join(dir, "out.jsonl"), namespace))
	out, err := exec.CommandContext(within(t, 6*wide), binary, "validate", "--connect", "--config", file,
		"--kubeconfig", writeKubeconfig(t, account)).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("got %v, want exit code 1", err)
	}
	text := string(out)
	t.Log(text)
	for sink, want := range map[string]string{
		"good": "", "plain": "", "bus": "", "file": "", "out": "",
		"denying": "check auth and headers", "stranger": "x509: ", "lost": "OTHER", "away": freeport.Addr(port),
		"nowhere":       "/no/such/directory",
		"v1/configmaps": "", "v1/secrets": "", "v1/secret": "did you mean v1/secrets?",
	} {
		found := false
		for line := range strings.Lines(text) {
			status, rest, _ := strings.Cut(line, " ")
			if strings.HasPrefix(strings.TrimSpace(rest), sink+" (") {
				found = true
				if wantStatus := map[bool]string{true: "ok", false: "failed"}[want == ""]; status != wantStatus || !strings.Contains(line, want) {
					t.Errorf("got %q, want %s and %q", line, wantStatus, want)
				}
			}
		}
		if !found {
			t.Errorf("there is no line for %s", sink)
		}
	}
	if !strings.Contains(text, "8 of 16 checks failed") || strings.Contains(text, token) {
		t.Errorf("got %s", text)
	}
	for _, r := range []*webhooktest.Receiver{good, denying, plain, secure} {
		for _, request := range r.Requests() {
			if request.Method != http.MethodOptions || len(request.Records) > 0 {
				t.Errorf("got %s with %d records", request.Method, len(request.Records))
			}
		}
	}
	if got := good.Requests(); len(got) != 1 || got[0].Header.Get("Authorization") != "Bearer "+token {
		t.Errorf("got %d requests: %v", len(got), got)
	}
	if got := bus.StreamInfo(t.Context(), "K8S").State.Msgs; got != 0 {
		t.Errorf("got %d messages", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "out.jsonl")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file was made: %v", err)
	}
}

// TestValidateReplicas: the rights of replicas are checked by what a replica does, and those that a run does without are warnings.
func TestValidateReplicas(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "validate")
	config := fmt.Sprintf(`
stateDir: %q
leaderElection: {leaseName: validate, leaseNamespace: %[2]s}
replication: {listen: "127.0.0.1:0", advertise: "127.0.0.1:8443"}
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%[2]s]}}]
pipelines: [{name: p, sink: out, enrich: involvedObject}]
sinks: [{name: out, stdout: {}}]
`, t.TempDir(), namespace)
	var others, all []right
	for _, r := range printedRights(t, config) {
		switch r.resource {
		case "configmaps", "namespaces":
			others = append(others, r)
		case "serviceaccounts/token": // the account of the test has another name
			r.namespace = "default"
			delete(r.rule, "resourceNames")
		}
		if !slices.Contains(involved, r.resource) {
			all = append(all, r)
		}
	}
	file := writeConfig(t, t.TempDir(), config)
	validate := func(rights []right) (text string, err error) {
		command := exec.CommandContext(within(t, 6*wide), raceBinary(t), "validate", "--connect", "--config", file, "--kubeconfig", grant(t, rights))
		out, err := command.CombinedOutput()
		return string(out), err
	}
	text, err := validate(all)
	if err != nil {
		t.Errorf("with all rights: %v, %s", err, text)
	}
	if n := strings.Count(text, "\nwarning right of a ClusterRole"); n != len(involved) {
		t.Errorf("got %d warnings for objects that Events are about, want %d: %s", n, len(involved), text)
	}
	text, err = validate(others)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(text, "3 of ") {
		t.Errorf("without the rights of replicas: got %v, %s", err, text)
	}
	for _, want := range []string{`resources: ["leases"], verbs: [create]}`, `resourceNames: ["validate"]`, "failed  the ServiceAccount of replicas"} {
		if !strings.Contains(text, want) {
			t.Errorf("got no line with %s: %s", want, text)
		}
	}
}

// TestValidateConnectWildcards looks up what wildcards stand for, and checks the rights to that alone.
func TestValidateConnectWildcards(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "connect")
	account, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	grantOne(t, plane(t).Config(), namespace, "batch", "jobs")
	file := writeConfig(t, t.TempDir(), fmt.Sprintf(`
sources: [{name: s, resources: ["batch/*", "*.nothing.test"], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: out}]
sinks: [{name: out, stdout: {}}]
`, namespace))
	out, err := exec.CommandContext(within(t, 6*wide), raceBinary(t), "validate", "--connect", "--config", file,
		"--kubeconfig", writeKubeconfig(t, account)).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("got %v, want exit code 1", err)
	}
	in := "right of a Role in namespace " + namespace
	for _, want := range []string{
		"ok      batch/* (source s), of which there are 2\n", "ok      batch/v1/jobs (source s)\n", "ok      batch/v1/cronjobs (source s)\n",
		"warning nothing.test/* (source s), of which there are 0: the API server has none yet",
		"ok      " + in + `: {apiGroups: ["batch"], resources: ["jobs"]`, "failed  " + in + `: {apiGroups: ["batch"], resources: ["cronjobs"]`,
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("got\n%s\nwant %q in it", out, want)
		}
	}
}
