package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// configuration is that of the exporter; its only argument is the address of the NATS server.
const configuration = `cluster: demo
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
	// address of its metrics.
	address string
}

func startExporter(ctx context.Context, dir, kubeconfig, natsURL string) (_ *exporter, err error) {
	if err := programs.Exporter().Build(ctx, io.Discard); err != nil {
		return nil, err
	}
	binary, err := programs.Exporter().Path()
	if err != nil {
		return nil, err
	}
	config, log := filepath.Join(dir, "kubeferry.yaml"), filepath.Join(dir, "exporter.log")
	if err := os.WriteFile(config, fmt.Appendf(nil, configuration, natsURL), 0o600); err != nil {
		return nil, err
	}
	p, err := process.Start(process.Options{
		Path: binary, Args: []string{"run", "--config", config, "--kubeconfig", kubeconfig}, Log: log,
	})
	if err != nil {
		return nil, err
	}
	e := &exporter{process: p}
	defer func() {
		if err != nil {
			e.stop()
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err = p.WaitReady(ctx, func(ctx context.Context) error {
		address, err := addressIn(log)
		if err != nil {
			return err
		}
		e.address = address
		return ask(ctx, "http://"+address+"/readyz")
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// addressIn reads from the exporter's log where it listens.
func addressIn(log string) (string, error) {
	text, err := os.ReadFile(log)
	if err != nil {
		return "", err
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		var line struct{ Msg, Address string }
		if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "serving metrics and probes" {
			return line.Address, nil
		}
	}
	return "", errors.New("the exporter has not said where it listens")
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

// stop sends SIGTERM to the exporter, as Kubernetes would.
func (e *exporter) stop() { e.process.Stop(30 * time.Second) }

func (e *exporter) done() <-chan struct{} { return e.process.Done() }

func (e *exporter) log() string { return e.process.LogTail() }

// problem is an error with the exporter's last words.
func (e *exporter) problem() error {
	select {
	case <-e.done():
		return fmt.Errorf("the exporter has ended:\n%s", e.log())
	default:
		return fmt.Errorf("the exporter's log:\n%s", e.log())
	}
}
