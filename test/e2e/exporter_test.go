package e2e_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/process"
)

// clusterName is the `cluster` of every configuration.
const clusterName = "e2e"

// exporter is a running program. Its methods fail the test instead of returning errors.
type exporter struct {
	tb      testing.TB
	process *process.Process
	address string // of metrics and probes
	log     string // file
	stdout  string // file
	// leaves is set if the test stops it with changes that cannot be delivered.
	leaves bool
	ended  bool
}

// startExporter runs the program with a configuration, to which it adds what is the same in all tests, and returns when it
// serves its probes. With the test it is stopped as by Stop, unless it was before.
//
// adjust changes how the program is run.
func startExporter(tb testing.TB, kubeconfig, config string, adjust ...func(*process.Options)) *exporter {
	tb.Helper()
	return runExporter(tb, kubeconfig, writeConfig(tb, tb.TempDir(), config), adjust...)
}

// runExporter is startExporter with a whole configuration file.
func runExporter(tb testing.TB, kubeconfig, file string, adjust ...func(*process.Options)) *exporter {
	tb.Helper()
	e := &exporter{tb: tb}
	binary := raceBinary(tb)
	dir := tb.TempDir()
	e.log, e.stdout = filepath.Join(dir, "log"), filepath.Join(dir, "stdout")
	options := process.Options{
		Path: binary, Args: []string{"run", "--config", file, "--kubeconfig", kubeconfig}, Log: e.log, Stdout: e.stdout,
	}
	for _, change := range adjust {
		change(&options)
	}
	var err error
	if e.process, err = process.Start(options); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		e.Stop()
		if tb.Failed() {
			tb.Logf("log of kubeferry:\n%s", tail(e.log, 80))
		}
	})
	eventually(tb, 20*time.Second, "kubeferry starts", func() error {
		select {
		case <-e.process.Done():
			tb.Fatalf("kubeferry ended: %v", e.process.Wait())
		default:
		}
		for _, line := range e.Logged("serving metrics and probes") {
			e.address, _ = line["address"].(string)
			return nil
		}
		return errors.New("it does not say where it listens")
	})
	return e
}

func writeConfig(tb testing.TB, dir, config string) string {
	tb.Helper()
	file := filepath.Join(dir, "kubeferry.yaml")
	text := "cluster: " + clusterName + "\n" + config + `
server: {listen: "127.0.0.1:0"}
log: {level: debug, format: json}
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	return file
}

// Stop checks the ledger, sends SIGTERM, and expects kubeferry to deliver what it has and to exit with 0 in time.
func (e *exporter) Stop() {
	e.tb.Helper()
	if e.ended {
		return
	}
	e.ended = true
	defer e.process.Kill()
	select {
	case <-e.process.Done():
		e.tb.Errorf("kubeferry ended by itself: %v", e.process.Wait())
		return
	default:
	}
	e.checkLedgers()
	e.process.Signal(syscall.SIGTERM)
	select {
	case <-e.process.Done():
	case <-time.After(40 * time.Second):
		e.dump()
		e.tb.Errorf("kubeferry did not end 40 s after SIGTERM; its goroutines are in the log")
		return
	}
	if err := e.process.Wait(); err != nil {
		e.tb.Errorf("kubeferry ended with %v, want exit code 0", err)
	}
	e.checkLog()
	if left := e.Logged("stopping with changes that were not delivered"); len(left) > 0 && !e.leaves {
		e.tb.Errorf("kubeferry stopped with changes undelivered: %v", left)
	}
}

// Kill checks the ledger and ends kubeferry the hard way.
func (e *exporter) Kill() {
	e.tb.Helper()
	e.checkLedgers()
	e.ended = true
	e.process.Kill()
	e.checkLog()
}

// checkLog fails the test if the log of kubeferry, which has ended, has a race or a panic.
func (e *exporter) checkLog() {
	e.tb.Helper()
	if text := e.LogText(); strings.Contains(text, "DATA RACE") || strings.Contains(text, "panic:") {
		e.tb.Errorf("a race or a panic in kubeferry's log:\n%s", tail(e.log, 300))
	}
}

// WaitReady returns when /readyz answers with 200.
func (e *exporter) WaitReady() {
	e.tb.Helper()
	eventually(e.tb, 20*time.Second, "readiness", func() error {
		code, body := e.Get("/readyz")
		if code != http.StatusOK {
			return fmt.Errorf("%d: %s", code, body)
		}
		return nil
	})
}

// Get sends a request to kubeferry's HTTP server, which must answer soon whatever happens.
func (e *exporter) Get(path string) (code int, body string) {
	e.tb.Helper()
	client := http.Client{Timeout: wide, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + e.address + path)
	if err != nil {
		e.dump()
		e.tb.Fatalf("%s: %v; kubeferry's goroutines:\n%s", path, err, tail(e.log, 1000))
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		e.tb.Fatalf("%s: %v", path, err)
	}
	return resp.StatusCode, string(text)
}

// AnswersSoon sends requests that must be answered with 200, each within d on a machine that is not busy.
func (e *exporter) AnswersSoon(d time.Duration, paths ...string) {
	e.tb.Helper()
	pulse := startPulse(e.tb, nil)
	defer pulse.Stop()
	for _, path := range paths {
		begun := time.Now()
		code, body := e.Get(path)
		ended := time.Now()
		if took, most := ended.Sub(begun)-pulse.Stalled(begun, ended), e.Slowed(d); code != http.StatusOK || took > most {
			e.tb.Errorf("%s: %d after %v, want at most %v: %s", path, code, took, most, body)
		}
	}
}

// dump ends kubeferry, which is stuck, so that its goroutines are in the log.
func (e *exporter) dump() {
	e.ended = true
	e.process.Signal(syscall.SIGQUIT)
	select {
	case <-e.process.Done():
	case <-time.After(5 * time.Second):
		e.process.Kill()
	}
}

// Slowed returns how long kubeferry may take for what takes d on a machine that is not busy.
func (e *exporter) Slowed(d time.Duration) time.Duration {
	e.tb.Helper()
	return timesOf(e.tb, e.process.Pid()).slowed(d)
}

// LogText is everything written to standard error so far.
func (e *exporter) LogText() string {
	text, err := os.ReadFile(e.log)
	if err != nil {
		e.tb.Fatal(err)
	}
	return string(text)
}

// Logged returns the log lines whose message contains text.
func (e *exporter) Logged(text string) []map[string]any {
	var found []map[string]any
	lines := bufio.NewScanner(strings.NewReader(e.LogText()))
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		if !bytes.Contains(lines.Bytes(), []byte(text)) {
			continue // a long log takes seconds to parse
		}
		var line map[string]any
		if json.Unmarshal(lines.Bytes(), &line) != nil {
			continue
		}
		if message, _ := line["msg"].(string); strings.Contains(message, text) {
			found = append(found, line)
		}
	}
	return found
}

// WaitLogged returns the first line whose message contains text, and all parts somewhere else in the line.
func (e *exporter) WaitLogged(d time.Duration, text string, parts ...string) map[string]any {
	e.tb.Helper()
	var found map[string]any
	eventually(e.tb, d, fmt.Sprintf("log line %q %q", text, parts), func() error {
		lines := e.Logged(text)
	next:
		for _, line := range lines {
			whole := fmt.Sprint(line)
			for _, part := range parts {
				if !strings.Contains(whole, part) {
					continue next
				}
			}
			found = line
			return nil
		}
		return fmt.Errorf("there are %v", lines)
	})
	return found
}

func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(bytes.Join(all[max(0, len(all)-lines):], []byte("\n")))
}
