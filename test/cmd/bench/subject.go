package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/process"
)

// subject is a program that is measured.
type subject struct {
	process *process.Process
	log     string
	profile string // where its profiles go; empty for nowhere
	begun   time.Time
}

func (l *lab) start(program string, env []string, args ...string) (*subject, error) {
	l.runs++
	dir := l.dir
	if l.keep != "" {
		dir = l.keep
	}
	s := &subject{log: filepath.Join(dir, fmt.Sprintf("%03d-%s.log", l.runs, program)), begun: time.Now()}
	if err := os.Remove(s.log); err != nil && !errors.Is(err, fs.ErrNotExist) { // of an earlier run
		return nil, err
	}
	var err error
	s.process, err = process.Start(process.Options{Path: l.programs[program], Args: args, Env: env, Log: s.log})
	return s, err
}

// startFloor runs the floor on a collection, from what exists or live.
func (l *lab) startFloor(path string, live bool) (*subject, error) {
	args := []string{"-kubeconfig", l.plane.KubeconfigFile(), "-path", path, "-url", l.hook.url, "-batch", "100", "-linger", "5ms"}
	if live {
		args = append(args, "-live")
	}
	return l.start("floor", nil, args...)
}

// exporter is how kubeferry runs.
type exporter struct {
	program   string // the name under which it was built; kubeferry if it is empty
	resources []string
	namespace string // empty: all
	selector  string
	pipelines int    // 1 if 0
	stateless bool   // without a state directory
	stateDir  string // instead of a fresh one
	replicas  *replicas
}

// startExporter runs kubeferry with its defaults, but for what e sets.
func (l *lab) startExporter(e exporter) (*subject, error) {
	dir, err := os.MkdirTemp(l.dir, "kubeferry-")
	if err != nil {
		return nil, err
	}
	if e.stateDir == "" && !e.stateless {
		e.stateDir = filepath.Join(dir, "state")
	}
	file := filepath.Join(dir, "kubeferry.yaml")
	if err := os.WriteFile(file, e.configuration(l.hook.url), 0o600); err != nil {
		return nil, err
	}
	profile := l.profileName()
	env := []string{"KUBEFERRY_BENCH_PROFILE=" + profile}
	kubeconfig := l.plane.KubeconfigFile()
	if e.replicas != nil {
		kubeconfig = e.replicas.kubeconfig
	}
	s, err := l.start(cmp.Or(e.program, "kubeferry"), env, "run", "--config", file, "--kubeconfig", kubeconfig)
	if err == nil {
		s.profile = profile
	}
	return s, err
}

func (e exporter) configuration(url string) []byte {
	var b bytes.Buffer
	resources, _ := json.Marshal(e.resources) // strings; JSON is YAML
	fmt.Fprintf(&b, "cluster: bench\n")
	if !e.stateless {
		fmt.Fprintf(&b, "stateDir: %q\n", e.stateDir)
	}
	if e.replicas != nil {
		b.WriteString(e.replicas.configuration())
	}
	fmt.Fprintf(&b, "sources:\n  - name: all\n    resources: %s\n", resources)
	if e.namespace != "" {
		fmt.Fprintf(&b, "    namespaces: {include: [%s]}\n", e.namespace)
	}
	if e.selector != "" {
		fmt.Fprintf(&b, "    labelSelector: %q\n", e.selector)
	}
	fmt.Fprintf(&b, "pipelines:\n")
	for n := range max(1, e.pipelines) {
		fmt.Fprintf(&b, "  - {name: pipeline-%d, sink: out}\n", n)
	}
	fmt.Fprintf(&b, "sinks:\n  - name: out\n    webhook: {url: %q, batch: {maxRecords: 100, linger: 5ms}}\n", url)
	fmt.Fprintf(&b, "server: {listen: \"127.0.0.1:0\"}\n")
	return b.Bytes()
}

// waitReady returns when kubeferry's /readyz answers with 200.
func (s *subject) waitReady(ctx context.Context) error {
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return s.poll(ctx, func() error {
		line, err := s.logged("serving metrics and probes")
		if err != nil {
			return err
		}
		var at struct{ Address string }
		if err := json.Unmarshal(line, &at); err != nil {
			return err
		}
		resp, err := client.Get("http://" + at.Address + "/readyz") //nolint:noctx // the client's time-out bounds it
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode != http.StatusOK {
			return errors.New("not ready: " + resp.Status)
		}
		return nil
	})
}

// waitLogged returns when the program has logged text.
func (s *subject) waitLogged(ctx context.Context, text string) error {
	return s.poll(ctx, func() error {
		_, err := s.logged(text)
		return err
	})
}

func (s *subject) poll(ctx context.Context, condition func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return s.process.WaitReady(ctx, func(context.Context) error { return condition() })
}

// logged returns the first line of the log that holds text.
func (s *subject) logged(text string) ([]byte, error) {
	content, err := os.ReadFile(s.log)
	if err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		if bytes.Contains(lines.Bytes(), []byte(text)) {
			return bytes.Clone(lines.Bytes()), nil
		}
	}
	return nil, fmt.Errorf("it has not said %q", text)
}

func (s *subject) usage() (usage, error) { return readUsage(s.process.Pid()) }

// stop ends the program as Kubernetes would.
func (s *subject) stop() {
	s.writeProfile()
	s.process.Stop(time.Minute)
}

// explain adds the end of the log to an error.
func (s *subject) explain(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w; its log:\n%s", err, s.process.LogTail())
}
