package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestExtendedSnapshotProgress runs a snapshot at a terminal while the receiver does not answer, and lets it go on: one line shows how far it is, and
// the result takes its place.
func TestExtendedSnapshotProgress(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "progress")
	objects := createLarge(t, namespace)
	hook := webhooktest.Start(t)
	config := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, filters: [{expr: 'object.metadata.name != "kube-root-ca.crt"'}], retry: {initial: 50ms, max: 200ms}, backlog: {maxBytes: 1Mi}}]
sinks: [{name: hook, webhook: {url: %q, timeout: 10m}}] # so that a call that is held fails at no time
`, filepath.Join(t.TempDir(), "state"), namespace, hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), config)
	e.WaitReady()
	expectMarks(t, hook, 1)
	e.WaitSettled(wide)

	answer := make(chan struct{})
	hook.Use(webhooktest.Always(webhooktest.Answer{Status: http.StatusOK, Held: answer}))
	reader, writer := terminal(t)
	command := exec.CommandContext(within(t, 6*wide), raceBinary(t), "snapshot", "--config", writeConfig(t, t.TempDir(), config), "--pipeline", "p")
	command.Stdout, command.Stderr = writer, writer
	if err := errors.Join(command.Start(), writer.Close()); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex // guards shown
	var shown bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		buffer := make([]byte, 4096)
		for {
			n, err := reader.Read(buffer)
			mu.Lock()
			shown.Write(buffer[:n])
			mu.Unlock()
			if err != nil { // the command has ended: a terminal then fails
				return
			}
		}
	}()
	text := func() string {
		mu.Lock()
		defer mu.Unlock()
		return shown.String()
	}
	const again = "\r\x1b[K" // the line begins anew
	progress, some := regexp.MustCompile(`^\d+ sent, \d+ left$`), regexp.MustCompile(`^[1-9]\d* sent, [1-9]\d* left$`)
	eventually(t, wide, "some are sent, and some are left", func() error {
		if lines := strings.Split(text(), again); !some.MatchString(lines[len(lines)-1]) {
			return fmt.Errorf("the terminal got %q", lines)
		}
		return nil
	})
	close(answer)
	<-read
	if err := command.Wait(); err != nil {
		t.Error(err)
	}
	got := strings.Split(text(), again)
	want := fmt.Sprintf("v1/configmaps in %s (source s): %d sent, complete\r\n", namespace, len(objects.names))
	if got[0] != "" || got[len(got)-1] != want {
		t.Errorf("the terminal got %q, want one line, and at last %q", got, want)
	}
	for _, line := range got[1 : len(got)-1] {
		if !progress.MatchString(line) {
			t.Errorf("the terminal got %q", line)
		}
	}
}
