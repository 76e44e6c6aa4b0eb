package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// configuration is that of each replica; its arguments are the state directory and the address of the NATS server.
const configuration = `cluster: demo
stateDir: %q
leaderElection: {leaseName: kubeferry, leaseNamespace: ` + namespace + `, leaseDuration: 3s, renewDeadline: 2s, retryPeriod: 500ms}
replication: {listen: "127.0.0.1:0"}
sources:
  - name: all
    resources: [apps/v1/deployments, v1/configmaps, example.com/v1/widgets]
    namespaces: {exclude: [kube-system]}
pipelines:
  - name: stream
    format: cloudevents
    sink: bus
sinks:
  - name: bus
    nats:
      urls: [%q]
      subject: "k8s.{group}.{resource}.{namespace}.{name}"
      stream: {name: ` + streamName + `, create: true, maxBytes: 64Mi}
server: {listen: "127.0.0.1:0"}
log: {format: json}
`

// exporter is the program that all of this is about, as a child process.
type exporter struct {
	process *process.Process
	dir     string
	// address of its metrics.
	address string
}

func startExporter(ctx context.Context, dir, kubeconfig, natsURL string) (_ *exporter, err error) {
	binary, err := programs.Exporter().Path()
	if err != nil {
		return nil, err
	}
	state := filepath.Join(dir, "state")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	config, log := filepath.Join(dir, "kubeferry.yaml"), filepath.Join(dir, logFile)
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, state, natsURL), 0o600); err != nil {
		return nil, err
	}
	p, err := process.Start(process.Options{
		Path: binary, Args: []string{"run", "--config", config, "--kubeconfig", kubeconfig}, Log: log,
	})
	if err != nil {
		return nil, err
	}
	e := &exporter{process: p, dir: dir}
	defer func() {
		if err != nil {
			e.stop()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = p.WaitReady(ctx, func(ctx context.Context) error {
		if e.address == "" && !e.logged("serving metrics and probes") {
			return errors.New("kubeferry has not said where it listens")
		}
		return ask(ctx, "http://"+e.address+"/readyz")
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

const logFile = "kubeferry.log"

// logged reports whether its log has a message. It notes the address that kubeferry serves its metrics at.
func (e *exporter) logged(message string) bool {
	text, err := os.ReadFile(filepath.Join(e.dir, logFile))
	if err != nil {
		return false
	}
	for line := range bytes.Lines(text) {
		var parsed struct{ Msg, Address string }
		if json.Unmarshal(line, &parsed) != nil || parsed.Msg != message {
			continue
		}
		if e.address == "" {
			e.address = parsed.Address
		}
		return true
	}
	return false
}

// kill ends kubeferry as the loss of its node would.
func (e *exporter) kill() error {
	e.process.Kill()
	return os.RemoveAll(e.dir)
}

func ask(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return nil
}

// stop sends SIGTERM to kubeferry, as Kubernetes would.
func (e *exporter) stop() { e.process.Stop(30 * time.Second) }

func (e *exporter) done() <-chan struct{} { return e.process.Done() }

func (e *exporter) log() string { return e.process.LogTail() }

// problem is an error with kubeferry's last words.
func (e *exporter) problem() error {
	select {
	case <-e.done():
		return fmt.Errorf("kubeferry has ended:\n%s", e.log())
	default:
		return fmt.Errorf("kubeferry's log:\n%s", e.log())
	}
}
