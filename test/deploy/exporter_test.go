package deploy_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/release"
)

// exporter is the real program, with the rights of a kubeconfig and nothing else.
type exporter struct {
	process *process.Process
	log     string
	address string
}

// TestMain prepares what most tests run. What takes long and few tests run is prepared if one of these is selected.
func TestMain(m *testing.M) {
	flag.Parse()
	prepare := []assets.Prepare{controlplane.Prepare, programs.Exporter().Build, programs.Helm().Build}
	if slices.ContainsFunc([]string{"TestCommands", "TestRelease"}, assets.Selected) {
		prepare = append(prepare, programs.Kubectl().Build, programs.DownloadCRDs)
	}
	if slices.ContainsFunc([]string{"TestImageIsPushed", "TestImageIsTheDockerfiles", "TestInCluster", "TestReleaseFiles"}, assets.Selected) {
		prepare = append(prepare, release.Prepare)
	}
	assets.Must(prepare...)
	os.Exit(m.Run())
}

// start runs kubeferry with a configuration, as a Pod of these manifests, until the test ends.
func (m *manifests) start(t *testing.T, plane *controlplane.ControlPlane, file string, env ...string) *exporter {
	t.Helper()
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := controlplane.WriteKubeconfig(kubeconfig, m.account(t, plane)); err != nil {
		t.Fatal(err)
	}
	return run(t, process.Options{
		Path: binary(t), Args: []string{"run", "--config", writeConfig(t, file), "--kubeconfig", kubeconfig},
		Env: append(env, "POD_NAMESPACE="+m.workload.Namespace), Log: filepath.Join(dir, "log"),
	})
}

// account is what a Pod of these manifests may do.
func (m *manifests) account(t *testing.T, plane *controlplane.ControlPlane) *rest.Config {
	t.Helper()
	account, err := plane.ServiceAccountConfig(t.Context(), m.workload.Namespace, m.workload.Spec.Template.Spec.ServiceAccountName)
	if err != nil {
		t.Fatal(err)
	}
	return account
}

func binary(t *testing.T) string {
	t.Helper()
	path, err := programs.Exporter().Path()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs kubeferry until the test ends. It returns when kubeferry answers.
func run(t *testing.T, options process.Options) *exporter {
	t.Helper()
	e := &exporter{log: options.Log}
	var err error
	if e.process, err = process.Start(options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.process.Stop(30 * time.Second)
		if t.Failed() {
			t.Logf("kubeferry's log:\n%s", e.process.LogTail())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err = e.process.WaitReady(ctx, func(ctx context.Context) error {
		for _, line := range e.lines(t) {
			if line["msg"] == "serving metrics and probes" {
				e.address, _ = line["address"].(string)
			}
		}
		_, _, err := e.ask(ctx, "/healthz")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// lines are those of the log so far.
func (e *exporter) lines(t *testing.T) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(e.log)
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	scanner := bufio.NewScanner(bytes.NewReader(text))
	for scanner.Scan() {
		var line map[string]any
		if err := json.Unmarshal(scanner.Bytes(), &line); err == nil { // the last may be half a line
			lines = append(lines, line)
		}
	}
	return lines
}

func (e *exporter) ask(ctx context.Context, path string) (status int, body []byte, err error) {
	if e.address == "" {
		return 0, nil, errors.New("kubeferry has not said where it listens")
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.address+path, nil)
	if err != nil {
		return 0, nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

// await sends requests until the answer satisfies, for at most a minute.
func (e *exporter) await(t *testing.T, path, what string, satisfies func(status int, body string) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := e.process.WaitReady(ctx, func(ctx context.Context) error {
		status, body, err := e.ask(ctx, path)
		if err == nil && !satisfies(status, string(body)) {
			err = fmt.Errorf("%s: %d %s", path, status, strings.TrimSpace(string(body)))
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func isReady(status int, _ string) bool { return status == http.StatusOK }

func leads(_ int, body string) bool { return strings.Contains(body, `"role": "leader"`) }
