package examples_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
)

// exporter is one of two replicas.
type exporter struct {
	t       *testing.T
	file    string
	options process.Options
	process *process.Process
	gateway *proxy.HTTP // between both and the API server
}

// newExporters prepares two replicas that run as a ServiceAccount of a namespace, with all rights.
func newExporters(t *testing.T, plane *controlplane.ControlPlane, namespace, config string) [2]*exporter {
	t.Helper()
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	account, err := plane.ServiceAccountConfig(t.Context(), namespace, "exporter")
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "exporter"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "exporter"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binary, err := programs.Exporter().Path()
	if err != nil {
		t.Fatal(err)
	}
	gateway := proxy.NewHTTP(t, account)
	var both [2]*exporter
	for i := range both {
		dir := t.TempDir()
		kubeconfig, file := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "kubeferry.yaml")
		if err := controlplane.WriteKubeconfig(kubeconfig, gateway.Config()); err != nil {
			t.Fatal(err)
		}
		// A replica that lost its Lease on a busy machine is not started again: the Lease lasts.
		text := fmt.Sprintf(`
cluster: examples
stateDir: %q
shutdown: {grace: 5s}
leaderElection: {leaseName: kubeferry, leaseNamespace: %s, leaseDuration: 10s, renewDeadline: 8s, retryPeriod: 500ms, staleWait: 1m}
replication: {listen: "127.0.0.1:0"}
server: {listen: "127.0.0.1:0"}
`, filepath.Join(dir, "state"), namespace) + config
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		both[i] = &exporter{t: t, file: file, gateway: gateway, options: process.Options{
			Path: binary, Args: []string{"run", "--config", file, "--kubeconfig", kubeconfig}, Log: filepath.Join(dir, "log"),
		}}
	}
	return both
}

func (e *exporter) Start() {
	e.t.Helper()
	p, err := process.Start(e.options)
	if err != nil {
		e.t.Fatal(err)
	}
	e.process = p
	e.t.Cleanup(func() {
		p.Stop(20 * time.Second)
		if e.t.Failed() {
			e.t.Logf("log of %s:\n%s", e.file, p.LogTail())
		}
	})
}

var serving = regexp.MustCompile(`"msg":"serving metrics and probes[^}]*"address":"([^"]+)"`)

// loseStates removes the states of both, and the Lease: with the Lease they would wait five minutes for another replica that has the state.
func loseStates(t *testing.T, plane *controlplane.ControlPlane, namespace string, both [2]*exporter) {
	t.Helper()
	for _, e := range both {
		if err := os.RemoveAll(filepath.Join(filepath.Dir(e.file), "state")); err != nil {
			t.Fatal(err)
		}
	}
	client, err := kubernetes.NewForConfig(plane.Config())
	if err != nil {
		t.Fatal(err)
	}
	if err := client.CoordinationV1().Leases(namespace).Delete(t.Context(), "kubeferry", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// get sends a request to the HTTP server of the last run.
func (e *exporter) get(path string) (int, string) {
	log, err := os.ReadFile(e.options.Log)
	addresses := serving.FindAllSubmatch(log, -1)
	if err != nil || len(addresses) == 0 {
		return 0, ""
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + string(addresses[len(addresses)-1][1]) + path)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

// leads reports whether it is the leader, and ready.
func (e *exporter) leads() bool {
	_, metrics := e.get("/metrics")
	code, _ := e.get("/readyz")
	return strings.Contains(metrics, "\nkubeferry_leader 1\n") && code == http.StatusOK
}

// inSync reports whether it has a standby that has its state.
func (e *exporter) inSync() bool {
	_, metrics := e.get("/metrics")
	return e.leads() && strings.Contains(metrics, "\nkubeferry_standbys_in_sync 1\n")
}

// snapshots runs `kubeferry snapshot` for several pipelines at once.
func (e *exporter) snapshots(pipelines []string) error {
	errs := make([]error, len(pipelines))
	var running sync.WaitGroup
	for n, pipeline := range pipelines {
		running.Go(func() {
			out, err := exec.CommandContext(e.t.Context(), e.options.Path, "snapshot", "--config", e.file, "--pipeline", pipeline).CombinedOutput()
			if err != nil {
				errs[n] = fmt.Errorf("%s: %w: %s", pipeline, err, out)
			}
		})
	}
	running.Wait()
	return errors.Join(errs...)
}

// leader waits until one of the two leads.
func leader(t *testing.T, both [2]*exporter, ready func(e *exporter) bool) (leader, other *exporter) {
	t.Helper()
	eventually(t, "a replica leads", func() error {
		for i, e := range both {
			if ready(e) {
				leader, other = e, both[1-i]
				return nil
			}
		}
		return fmt.Errorf("none does:\n%s\n%s", both[0].process.LogTail(), both[1].process.LogTail())
	})
	return leader, other
}
