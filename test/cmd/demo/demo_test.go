package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// asDemo makes the test binary behave as the demo, so that what runs has the race detector in it.
const asDemo = "KUBEFERRY_TEST_AS_DEMO"

func TestMain(m *testing.M) {
	if os.Getenv(asDemo) != "" {
		main()
		return
	}
	assets.Must(controlplane.Prepare, programs.Exporter().Build)
	os.Exit(m.Run())
}

// demo prepares a run whose temporary files all lie in dir.
func demo(t *testing.T, dir string, env []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asDemo+"=1", "TMPDIR="+dir, "DEMO_FOR="), env...)
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

func TestEndsByItself(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	cmd := demo(t, dir, []string{"DEMO_FOR=4s"})
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"ADDED     deployments shop/api ", "snapshot: ", "ADDED     widgets shop/gear-1 ",
		"spec.replicas 1 → 3", "image nginx:1.27 → nginx:1.28", "DELETED   configmaps shop/settings-1 ",
		"/metrics", "/status", "the leader is killed", "the standby leads", " 0 not arrived",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the output has no %q", want)
		}
	}
	if strings.Contains(out.String(), "\x1b") {
		t.Error("colors, but no terminal")
	}
	if t.Failed() {
		t.Log(out.String())
	}
	checkNothingLeft(t, dir)
}

// TestProgramIsSmall: kubeferry has 40 MB. client-go's typed clients and informers would add 50 MB, and a text/template that is executed 9: it
// keeps every exported method of every type.
func TestProgramIsSmall(t *testing.T) {
	path, err := programs.Exporter().Path()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if size := info.Size(); size > 45e6 {
		t.Errorf("kubeferry has %d MB", size/1e6)
	}
}

func TestInterrupt(t *testing.T) {
	dir := t.TempDir()
	cmd := demo(t, dir, nil)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	buffer := make([]byte, 4096)
	for !strings.Contains(text.String(), " MODIFIED ") {
		n, err := out.Read(buffer)
		text.Write(buffer[:n])
		if err != nil {
			t.Fatalf("%v\n%s%s", err, text.String(), errOut.String())
		}
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&text, out); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil || errOut.Len() > 0 {
		t.Errorf("got %v, want exit 0 and nothing on standard error\n%s%s", err, text.String(), errOut.String())
	}
	checkNothingLeft(t, dir)
}

func TestUsage(t *testing.T) {
	for _, test := range []struct {
		name string
		env  string
		args []string
	}{
		{name: "flag", args: []string{"-for", "soon"}},
		{name: "negative", args: []string{"-for", "-1s"}},
		{name: "argument", args: []string{"10s"}},
		{name: "environment", env: "DEMO_FOR=soon"},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd := demo(t, t.TempDir(), []string{test.env}, test.args...)
			out, _ := cmd.CombinedOutput()
			if code := cmd.ProcessState.ExitCode(); code != 2 {
				t.Errorf("got exit %d, want 2\n%s", code, out)
			}
		})
	}
}

// checkNothingLeft looks for files in dir and for processes that put their files there.
func checkNothingLeft(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		t.Errorf("%s is left", entry.Name())
	}
	environments, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || environments == nil {
		t.Log("no /proc: cannot look for processes")
	}
	for _, path := range environments {
		environment, err := os.ReadFile(path)
		if err == nil && bytes.Contains(environment, []byte("TMPDIR="+dir+"\x00")) {
			t.Errorf("process %s is left", filepath.Base(filepath.Dir(path)))
		}
	}
}

func TestTallyCheck(t *testing.T) {
	arrive := func(tally *tally, version int, kind string) {
		r := &record{ID: fmt.Sprintf("demo/uid/%d/%s", version, kind), Subject: "/api/v1/namespaces/shop/configmaps/a"}
		r.Data.Type = kind
		tally.summarize(r)
	}
	tally := newTally()
	tally.expect(changeID("uid", "1", added))
	arrive(tally, 1, added)
	arrive(tally, 2, modified) // before the answer to the patch
	tally.expect(changeID("uid", "2", modified))
	if err := tally.check(); err == nil {
		t.Error("nothing was deleted, and check returns no error")
	}
	tally.expect(changeID("uid", "", deleted))
	if tally.complete() {
		t.Error("complete without the deletion")
	}
	arrive(tally, 3, deleted)
	if err := tally.check(); err != nil {
		t.Error(err)
	}
}
