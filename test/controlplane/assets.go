package controlplane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/cache"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// binary is a program of the module in assets/.
type binary struct{ name, pkg string }

// recipe is what is built together, from one go.mod, so that what two of them import is compiled once.
type recipe struct {
	dir      string // of the module
	binaries []binary
	takes    string
	version  string // of Kubernetes, such as v1.37.2
	digest   string // of everything that decides what is built
}

// server are the programs that every test needs, and controllers those that few do.
var (
	server = recipe{takes: "4 to 8 minutes on 2 cores, once on this machine", binaries: []binary{
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
		{"etcd", "go.etcd.io/etcd/server/v3"},
	}}
	controllers = recipe{takes: "3 minutes on 2 cores, once on this machine", binaries: []binary{
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
		{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler"},
	}}
)

// Assets returns a directory with the binaries kube-apiserver and etcd: the one that KUBEBUILDER_ASSETS names, or the
// one in the user's cache, which [Prepare] fills.
func Assets() (dir string, err error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" && complete(dir) {
		return dir, nil
	}
	r, err := server.load()
	if err != nil {
		return "", fmt.Errorf("control plane assets: %w", err)
	}
	if dir, err = cache.Find(r.cacheName()); err != nil {
		return "", fmt.Errorf("kube-apiserver and etcd are missing, run `make assets`: %w", err)
	}
	return dir, nil
}

// Prepare makes sure that there are Assets. It fills the user's cache the first time by a download with setup-envtest,
// or, where that cannot reach its host, by building both programs from the Go module in assets/. The build takes
// minutes; log gets its progress. Prepare belongs before the tests, in TestMain.
//
// Processes that call it at the same time wait for the one that builds.
func Prepare(ctx context.Context, log io.Writer) error {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" && complete(dir) {
		return nil
	}
	r, err := server.load()
	if err != nil {
		return fmt.Errorf("control plane assets: %w", err)
	}
	_, err = cache.Dir(ctx, log, r.cacheName(), func(ctx context.Context, dir string) error {
		err := download(ctx, log, r.version, dir)
		if err != nil {
			fmt.Fprintf(log, "kube-apiserver and etcd cannot be downloaded: %s\n", firstLine(err))
			err = r.build(ctx, log, dir)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("control plane assets: %w", err)
	}
	return nil
}

// PrepareControllers does that for what [ControlPlane.StartControllers] starts.
func PrepareControllers(ctx context.Context, log io.Writer) error {
	r, err := controllers.load()
	if err == nil {
		_, err = cache.Dir(ctx, log, r.cacheName(), func(ctx context.Context, dir string) error { return r.build(ctx, log, dir) })
	}
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	return nil
}

func complete(dir string) bool {
	for _, b := range server.binaries {
		info, err := os.Stat(filepath.Join(dir, b.name))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// load finds assets/ in the checkout, because modules cannot embed files of nested modules.
func (r recipe) load() (*recipe, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	r.dir = filepath.Join(root, "test", "controlplane", "assets")
	digest := sha256.New()
	fmt.Fprintln(digest, ldflags("VERSION"), r.binaries)
	for _, file := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(r.dir, file))
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(digest, "%s %d\n%s", file, len(b), b)
		if file == "go.mod" {
			r.version = kubernetesVersion(b)
		}
	}
	if r.version == "" {
		return nil, errors.New("the go.mod of the control plane does not require k8s.io/kubernetes")
	}
	r.digest = hex.EncodeToString(digest.Sum(nil))[:12]
	return &r, nil
}

func (r *recipe) cacheName() string {
	return fmt.Sprintf("controlplane/%s-%s-%s-%s", r.version, runtime.GOOS, runtime.GOARCH, r.digest)
}

// names are the programs' names, for people.
func (r *recipe) names() string { return r.binaries[0].name + " and " + r.binaries[1].name }

func kubernetesVersion(gomod []byte) string {
	m := regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes\s+(v\S+)`).FindSubmatch(gomod)
	if m == nil {
		return ""
	}
	return string(m[1])
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
