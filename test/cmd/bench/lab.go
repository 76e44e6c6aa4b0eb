package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// options are the flags.
type options struct {
	pairs    int
	scale    float64
	keep     string
	profile  bool
	checkout string // of the kubeferry that is measured; empty for this one
}

// lab is what the rows share.
type lab struct {
	options
	dir    string
	log    io.Writer
	root   string // of the checkout
	plane  *controlplane.ControlPlane
	config *rest.Config
	client *http.Client // with the rights of the control plane's administrator
	hook   *receiver
	// programs by name, once built.
	programs map[string]string
	// loaded are the sets of objects that exist, by name.
	loaded map[string]bool
	runs   int // of subjects, for the names of their files
}

func newLab(ctx context.Context, o options, log io.Writer) (_ *lab, err error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("it reads the CPU time of processes from /proc, which only Linux has")
	}
	l := &lab{options: o, log: log, programs: map[string]string{}, loaded: map[string]bool{}}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if l.dir, err = os.MkdirTemp("", "kubeferry-bench-"); err != nil {
		return nil, err
	}
	if o.keep != "" {
		if l.keep, err = filepath.Abs(o.keep); err != nil {
			return nil, err
		}
		if err := os.MkdirAll(l.keep, 0o755); err != nil {
			return nil, err
		}
	}
	if l.root, err = programs.Root(); err != nil {
		return nil, err
	}
	if l.profile || l.checkout != "" {
		err = l.build(ctx, "kubeferry", nil)
	} else {
		err = l.use(ctx, "kubeferry", programs.Exporter())
	}
	if err := cmp.Or(err, l.use(ctx, "floor", programs.Floor())); err != nil {
		return nil, err
	}
	if err := controlplane.Prepare(ctx, log); err != nil {
		return nil, err
	}
	l.say("starting the control plane")
	if l.plane, err = controlplane.Start(ctx, controlplane.Options{
		// Loading is not what is measured: nothing of it may wait for a fair share.
		APIServerFlags: []string{"--max-requests-inflight=2000", "--max-mutating-requests-inflight=2000"},
		EtcdFlags:      []string{"--quota-backend-bytes=8589934592"},
	}); err != nil {
		return nil, err
	}
	l.config = l.plane.Config()
	l.config.UserAgent = "kube-controller-manager/v1.36" // names the manager in managedFields
	if l.client, err = rest.HTTPClientFor(l.config); err != nil {
		return nil, err
	}
	l.hook, err = startReceiver()
	return l, err
}

func (l *lab) close() {
	if l.hook != nil {
		l.hook.close()
	}
	if l.client != nil {
		l.client.CloseIdleConnections()
	}
	if l.plane != nil {
		l.plane.Stop()
	}
	_ = os.RemoveAll(l.dir)
}

func (l *lab) say(format string, args ...any) { fmt.Fprintf(l.log, format+"\n", args...) }

// scaled is n objects, or as many as -scale makes of them.
func (l *lab) scaled(n int) int { return max(10, int(float64(n)*l.scale)) }

// use builds a program as for tests, unless it is up to date.
func (l *lab) use(ctx context.Context, name string, program programs.Program) error {
	if err := program.Build(ctx, l.log); err != nil {
		return err
	}
	path, err := program.Path()
	l.programs[name] = path
	return err
}

// source is the checkout of the kubeferry that is measured.
func (l *lab) source() string { return cmp.Or(l.checkout, l.root) }

// build builds kubeferry under a name, with the dependencies of its go.mod. Files that replace are laid over those of its source.
func (l *lab) build(ctx context.Context, name string, replace map[string]string) error {
	if l.programs[name] != "" {
		return nil
	}
	replace = maps.Clone(replace)
	if l.profile {
		if replace == nil {
			replace = map[string]string{}
		}
		replace["cmd/exporter/profiling_bench.go"] = profiling
	}
	binary := filepath.Join(l.dir, name)
	args := []string{"build", "-trimpath", "-buildvcs=false", "-o", binary}
	if len(replace) > 0 {
		overlay, err := l.overlay(name, replace)
		if err != nil {
			return err
		}
		args = append(args, overlay)
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./cmd/exporter")...)
	cmd.Dir = l.source()
	cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	l.programs[name] = binary
	return nil
}

// overlay returns the flag that makes the go command see files in the source of kubeferry, given by their paths there.
func (l *lab) overlay(name string, files map[string]string) (string, error) {
	list := filepath.Join(l.dir, name+"-overlay.json")
	replace := map[string]string{}
	for path, text := range files {
		file := filepath.Join(l.dir, name+"-"+filepath.Base(path))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(l.source(), path)] = file
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	return "-overlay=" + list, os.WriteFile(list, text, 0o600)
}
